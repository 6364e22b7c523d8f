// Package hostpath gives pods paths of the node itself: plugin
// kubernetes.io/host-path, inline or by a PersistentVolume.
//
// The path is checked, and created where its type says so. Nothing is ever
// made below the pod's directory: containers get the path itself. A
// PersistentVolume whose only access mode is ReadOnlyMany is read-only.
//
// # Provisioning
//
// With [ProvisionConfig], a storage class with the provisioner
// kubernetes.io/host-path gives each claim a directory of this node of its own,
// and the PersistentVolume the node affinity for this node: a pod that uses it
// runs here or nowhere. A class should have volumeBindingMode
// WaitForFirstConsumer where there is more than one node. Its parameters, in
// whatever case, are:
//
//   - path: a configured base, or an existing directory below one; default: the
//     first base.
//   - subDir: the volume's path below that, made of ${pvc.metadata.name},
//     ${pvc.metadata.namespace} and ${pv.metadata.name}; default: the latter. Two
//     volumes never get the same; an existing directory is never used.
//   - mode: the directory's mode in octal; default: [ProvisionConfig]'s.
//   - onDelete: delete, archive (rename it to archived-…) or retain; default:
//     [ProvisionConfig]'s.
//
// The capacity is what the claim asks for and nothing more: a directory has no
// size of its own, nothing keeps a pod from filling the file system, and all
// volumes below one base share its free space. Access modes are ReadWriteOnce and
// ReadWriteOncePod.
//
// Provisioned directories are marked in the directory.podvol of the class's path,
// which no volume can have or see. Only a marked directory is ever deleted or
// archived, only on the node that made it, and only for the claim that it was
// made for, once the host's role [volume.ReleaseVerifier] says that no pod uses
// it; without that role nothing is deleted. All this is done by descriptor and
// never across a mount.
//
// # Recycling
//
// With [RecycleConfig], this process empties released PersistentVolumes of
// reclaim policy Recycle that lie where it says; it asks the same role.
package hostpath
