// Package attachdetach decides which volume is attached to which node, as Kubernetes'
// attach/detach controller does.
//
//	pods, claims ──▶ who wants a volume ──┐
//	                                      ├──▶ a VolumeAttachment is made, or deleted
//	VolumeAttachments, nodes' status ─────┘      └──▶ its attacher attaches, or detaches
//
// A [Controller] makes a VolumeAttachment for each volume that a pod of a node wants, and
// deletes it when none does any more. The VolumeAttachment is all that is remembered: a
// controller that starts finds in them what the last one has left. Whoever is named in it
// does the work: the external-attacher of a CSI driver, or an [Attacher] for plugins that
// attach (volume.SpecAttacher), and for drivers without a cluster.
//
// The controller tells the node which volumes are attached (status.volumesAttached), and lets
// no volume go that the node says it uses (status.volumesInUse).
package attachdetach
