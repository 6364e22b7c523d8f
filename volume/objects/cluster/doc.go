// Package cluster reads and writes API objects of a Kubernetes cluster, for a
// node or a controller that already has a client-go clientset and informers.
// [FromInformers] returns an [objects.Source], [objects.Lister] and
// [objects.Writer]. The node manager and the controllers use it in place of the
// embedded store.
//
// A kind is read in one of two ways:
//
//   - Shared kinds come from the caller's informers, which the caller starts.
//     Nothing is watched twice. Objects that the informer does not select (pods
//     of other nodes, say) do not exist here.
//   - All other kinds are keyed: objects are fetched one by one, and watched as
//     long as they have a watcher here.
//
// The watches of keyed objects:
//
//   - Each selects a single name. The Node authorizer lets a node's identity see
//     that much of secrets and config maps.
//   - An object is watched once, however many pods use it.
//   - An immutable object is not watched, as in the kubelet. Its deletion is
//     noticed once its last watcher has stopped.
//   - Each watched object costs a request when the watch begins, and one whenever
//     it is opened again. A clientset's own limit (rest.Config's QPS, 5 by
//     default) delays a node with hundreds of pods by minutes. Raise it; the
//     kubelet's is 50.
//
// ClusterTrustBundles are read as certificates.k8s.io/v1, which API servers have
// since Kubernetes 1.37. A client-go before 0.37 does not know that version; with
// it they are read as v1beta1. For older servers, package clusterhost has a
// volume.TrustBundleGetter that knows v1beta1 too.
//
// # Three answers
//
// Three answers are never mixed up:
//
//   - The object does not exist ([volume.ErrNotFound]).
//   - It is not known yet whether it exists ([objects.ErrNotSynced]).
//   - The look-up failed (any other error). A 404 that the API server has not
//     given for this very object is a failed look-up. A proxy may give one, or
//     the API server for a resource that it does not serve.
//
// Once the state of an object is known, an outage of the API does not change it.
// Nor does it change that an object does not exist.
//
//   - Watches are opened again with growing pauses (client-go's: 0.8 to 30 s, and
//     never before the time in Retry-After).
//   - When a watch has expired (410), the object is listed again, and the changes
//     meanwhile are reported.
//   - A failed request never means that an object is gone.
//
// # Differences from the embedded store
//
//   - Objects from the API do not carry their kind and apiVersion.
//   - The API gives objects their UID.
//   - Pods, claims and PersistentVolumes begin without the status that they are
//     created with.
//   - An update of the status takes labels, annotations and finalizers along.
//   - A node's deleted pods wait for the node to delete them for good. Claims and
//     PersistentVolumes wait for the controller that protects them.
//   - Answers may be old; [objects.Live] reads from the API itself.
//   - The answer to a write can be lost, see [objects.ErrUncertain].
//
// # Rights
//
// By the Node authorizer a node may get, but neither list nor watch, claims,
// PersistentVolumes and service accounts. Such kinds are polled unless they are
// shared, see [Config]: their changes are reported up to a minute late. A node
// may list only its own pods (spec.nodeName). Pass that informer, see
// [Config.Informers].
//
// An identity that is no node's, such as a virtual kubelet's service account,
// needs these rights by RBAC:
//
//   - get, list and watch secrets, config maps and nodes;
//   - get claims, PersistentVolumes and service accounts;
//   - and the rights that package clusterhost lists.
package cluster
