// Package cluster reads and writes API objects of a Kubernetes cluster, for a
// node or a controller that has a client-go clientset and informers already.
// [FromInformers] returns an [objects.Source], [objects.Lister] and
// [objects.Writer] that the node manager and the controllers take as they take
// the embedded store.
//
// A kind is read in one of two ways:
//
//   - Shared kinds come from informers that the caller has and starts. Nothing is
//     watched twice, and what the informer does not select (pods of other nodes,
//     say) does not exist here.
//   - All other kinds are keyed: objects are fetched one by one, and watched as
//     long as somebody watches them here. Each such watch selects a single name,
//     which is what the Node authorizer lets a node's identity see of secrets and
//     config maps. However many pods use an object, it is watched once. An object
//     that says it is immutable is not watched, as in the kubelet: that it was
//     deleted is noticed once all have stopped to watch it.
//
// Each object that is watched costs a request when the watch begins, and one
// whenever it is opened again. A clientset's own limit (rest.Config's QPS, which is
// 5 by default) delays those of a node with hundreds of pods by minutes: raise it,
// the kubelet's is 50.
//
// ClusterTrustBundles are asked for as certificates.k8s.io/v1, which API servers
// have since Kubernetes 1.37; with a client-go before 0.37, which does not know
// that, as v1beta1. For older servers, package clusterhost has a
// volume.TrustBundleGetter that knows v1beta1 too.
//
// # What is known, and what is not
//
// Three answers are never mixed up: the object does not exist
// ([volume.ErrNotFound]), nobody can tell yet ([objects.ErrNotSynced]), and the
// look-up failed (any other error). An answer 404 that the API server has not
// given for this very object, such as one of a proxy or for a resource that is
// not served, is a failed look-up.
//
// Once an object is known, or known not to exist, that stands through any outage
// of the API: watches are opened again with growing pauses (client-go's: 0.8 to
// 30 s, and never before what Retry-After says), and when a watch has expired
// (410) the object is listed again. Whatever changed meanwhile is told then.
// Nothing counts as gone because it could not be asked for.
//
// # Where it differs from the embedded store
//
// Objects from the API do not carry their kind and apiVersion. They get their UID
// from it; pods, claims and PersistentVolumes begin without the status that they
// are created with; an update of the status takes labels, annotations and
// finalizers along. Pods of a node, when they are deleted, wait for the node to
// delete them for good; claims and PersistentVolumes wait for who protects them. Answers may be
// behind; [objects.Live] asks the API itself. The answer to a write can be lost,
// see [objects.ErrUncertain].
//
// By the Node authorizer a node may get, but neither list nor watch, claims,
// PersistentVolumes and service accounts. Such kinds are polled unless they are
// shared, see [Config]: their changes are told late, by up to a minute. Its pods it
// may list only as its own (spec.nodeName): give that informer, see
// [Config.Informers].
//
// An identity that is no node's, such as a virtual kubelet's service account, needs
// as much by RBAC: get, list and watch secrets, config maps and nodes; get claims,
// PersistentVolumes and service accounts; and what package clusterhost lists.
package cluster
