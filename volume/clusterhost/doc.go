// Package clusterhost plays the roles of a [volume.Host] over the API of a
// Kubernetes cluster, for a node or a controller that has a client-go clientset,
// and reports to the API which volumes a node uses:
//
//   - [Tokens] is a [volume.TokenRequester]: service account tokens, cached and
//     renewed as the kubelet does it.
//   - [TrustBundles] is a [volume.TrustBundleGetter], by name and by signer.
//   - [PodCertificates] is a [volume.PodCertificateRequester]: certificates that signers
//     issue to the node's pods.
//   - [Events] is a [volume.EventSink] over a client-go recorder, and takes the
//     controllers' events about claims and volumes as well.
//   - [Allocatable] is a [volume.AllocatableGetter]: what the Node object says.
//   - [PodRunner] is a [volume.PodRunner] for the pods that recycle volumes.
//   - [ReportVolumes] keeps a node's status.volumesInUse and tells the volume
//     manager its status.volumesAttached.
//   - [CSINode] is a [volume.CSINodePublisher]: the node's CSI drivers in its CSINode and
//     its Node.
//   - [Attachments] is a [volume.AttachmentGetter]: what attaching has told of a volume.
//   - [NodeResizes] is a [volume.NodeResizeReporter]: how volumes grew on the node.
//
// Config maps, secrets, claims and all other objects come from objects/cluster.
//
// # What the node's identity must be allowed
//
// The Node authorizer and the NodeRestriction admission plugin allow all that a
// node needs: create serviceaccounts/token for pods that are bound to it; get,
// list and watch clustertrustbundles; create podcertificaterequests for its pods, list and
// watch those, and get the pods' serviceaccounts; create and patch events; get and watch its
// Node, and patch it and its status; get, create, update and delete its CSINode; get
// volumeattachments and CSIDrivers; get the claims of its pods, and patch their status. A [PodRunner] belongs into a controller, whose role
// must allow to get, list, watch, create and delete pods; where it may list and
// watch events, the pods' events are passed on.
//
// Volumes of type glusterfs also need the right to get endpoints in the namespaces that
// their PersistentVolumes name, which not every version of Kubernetes gives to nodes.
package clusterhost
