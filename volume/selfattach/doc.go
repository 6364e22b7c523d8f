// Package selfattach has a node attach the volumes that it mounts by itself, as kubelets once
// did (enableControllerAttachDetach: false): on a machine without a cluster, or in a cluster
// whose attach/detach controller leaves the node alone.
//
//	the manager: VolumesInUse ──▶ record ──▶ AttachSpec ──▶ record ──▶ SetVolumesAttached
//	not in use any more       ──▶ record ──▶ DetachSpec ──▶ no record
//
// An [Attacher] is the [volume.AttachmentGetter] of a volume manager, and runs beside it.
//
//   - A volume has a record before anything attaches it, with all that is needed to detach it,
//     until that has succeeded. So nothing is attached without a record, whatever crashes.
//   - Nothing is detached that the manager has in use: what a pod wants, what is mounted, and
//     what an earlier owner of the root directory has left staged.
//   - Programs of one machine that attach the same volume tell each other so
//     ([Config].SharedDir). The last one detaches it. One in another mount namespace, whose
//     record is not to be seen, counts until it says that it is done, or the machine boots.
//   - One call is in flight for a volume, and delays no other volume.
//
// Without a cluster CSI drivers attach by the plugin of controller.ForNode, which is the manager's
// plugin, too. In a cluster their external-attachers do, by attachdetach.ByObject.
package selfattach
