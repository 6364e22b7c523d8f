// Package csi mounts the volumes of CSI drivers: plugin kubernetes.io/csi.
//
// A driver is a program of its own that serves the CSI specification's Node service on
// a Unix socket. [Config.Drivers] names sockets. Other drivers register themselves, as they
// do at a kubelet ([Plugin.Run]). The life of a PersistentVolume of
// a driver on a node:
//
//   - NodeStageVolume mounts it once for the node (MountDevice), if the driver stages.
//   - NodePublishVolume mounts it for each pod (SetUp).
//   - NodeUnpublishVolume and NodeUnstageVolume undo that (TearDown, UnmountDevice).
//
// Block volumes take the same way to a device. Inline volumes are published only: their
// driver makes them for one pod.
//
// # What a CSIDriver object says
//
// The host's [volume.CSIDriverGetter] gives the object of a driver. Without the role or
// the object [Config.Defaults] counts, and then the API's defaults: persistent volumes
// only, files are given to the pod's fsGroup where the volume has a file system type
// and one node writes to it, no pod information, no tokens.
//
// # Attaching
//
// Where the host knows attachments ([volume.AttachmentGetter]) and the driver attaches, the
// volume waits until the node's status lists it in use and attached, as the manager has it.
// What the VolumeAttachment tells goes to the driver. It is looked up once for each staging,
// and refuses it while the volume is being detached. The volume stays in use until it is
// unstaged for sure. The attaching itself is the cluster's controller's, or that of package
// selfattach with the plugin of controller.ForNode.
//
// # Without a cluster
//
// Package controller, below this one, has drivers make and delete the volumes of the claims
// of a machine of its own.
//
// # Errors
//
//   - A call that did not reach the driver did nothing ([volume.NothingDone]): the
//     driver is not registered, its socket refuses, an object cannot be read.
//   - The codes Canceled, DeadlineExceeded, Unavailable, ResourceExhausted and Aborted
//     leave doubt: the driver may have done it, or may still be doing it. The volume is
//     unpublished or unstaged before it is forgotten.
//   - Every other code of staging and publishing means that nothing was done. The
//     directory and its vol_data.json are removed. Where something is mounted there all
//     the same, the error leaves doubt.
//   - google.golang.org/grpc/status.Code finds the code of an error.
//   - No error holds a secret or a token.
//
// # Size of a program
//
// gRPC's page of traces keeps the linker from leaving out methods that nothing calls. With
// "go build -tags grpcnotrace" it is not linked: a program of 34 MB that uses html/template
// nowhere else has 29 MB then.
//
// # On disk
//
// The directories and the files vol_data.json are the kubelet's, so that a node can
// change from the kubelet to podvol and back. What it has left staged, of which no pod has
// a directory any more, is found by them ([Plugin.FindStaged]) and unstaged. A vol_data.json is written as a whole. One
// that is empty or missing does no harm where the volume's spec is known, or where the
// mount table shows what is mounted.
package csi
