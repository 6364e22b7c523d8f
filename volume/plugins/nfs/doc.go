// Package nfs mounts exports of NFS servers: plugin kubernetes.io/nfs, inline
// or by a PersistentVolume.
//
// Whether a share is mounted is asked of the mount table; the share itself is
// never touched, since a server may not answer and a share may be closed to
// root. [Config] has what a node's administrator may choose; all of it but the
// first is off until then.
//
// # Servers that do not answer
//
// After some mounts without an answer, further ones from the same server are
// refused at once with a [ServerDownError], until one that is let through
// succeeds ([BreakerConfig]). What is mounted already is not concerned. The state
// of each server is in the volume manager's Explain (Server of a volume's status)
// and its metric podvol_volume_server_up; volume.HealthOf asks the plugin itself.
// Teardown goes from a normal unmount to a forced and a lazy one
// (Config.ForceAfter, LazyAfter).
//
// A call that hangs when a volume is detached, as the question for its metrics,
// keeps its thread until the server answers; nothing can end it before. Whoever
// is the last to use an NFSv4 volume tells the server good-bye, an unmount as well
// as such a question, and waits for its answer: up to ten seconds, one after the
// other, while the server calls the client busy since it has other mounts, and
// where the server is gone for good until the mount's time is over, three minutes
// with the usual timeo and retrans of nfs(5) (Linux, nfs4_proc_destroy_clientid;
// measured on 6.1). The volume itself is gone by then and nothing waits for that.
//
// A volume whose directory the server has made anew is stale: every use of it
// fails, and its metrics say so ([mount.ErrStaleHandle]). It is not mounted again
// below running containers, which keep the stale one anyway: the pod must be
// deleted and made anew.
//
// # What pods may ask for
//
// Inline volumes have mount options by the pod's annotation
// mount-options.podvol.io/<volume>, and a missing directory below an export is
// made for make-directory.podvol.io/<volume>, as far as the node's
// [InlinePolicy] allows it to volumes of that server. What it does not allow is
// [ErrNotAllowed].
//
// # Recycling
//
// A released PersistentVolume with reclaim policy Recycle is emptied by a pod,
// as Kubernetes does, or by this process ([RecycleConfig]). Without the host's
// word that no pod uses it (role volume.ReleaseVerifier) nothing is deleted.
//
// # Provisioning
//
// A storage class with the provisioner kubernetes.io/nfs gives each claim a
// directory of a share of its own. Its parameters are csi-driver-nfs's, in
// whatever case:
//
//   - server and share: the export; required.
//   - subDir: the directory's path below it, made of ${pvc.metadata.name},
//     ${pvc.metadata.namespace} and ${pv.metadata.name}; default: the latter.
//     Nothing that leads out of the share is accepted, and two volumes never get
//     the same; what exists already is never used.
//   - mountPermissions: the directory's mode in octal; default, also of "0":
//     that of [ProvisionConfig].
//   - onDelete: delete, archive (rename it to archived-…) or retain; default:
//     that of [ProvisionConfig].
//
// What was provisioned is marked in the directory .podvol of the share, which no
// volume can have or see. Only a marked directory is ever deleted or archived,
// and only for the volume that it was made for. Delete asks the host as recycling
// does: without the role volume.ReleaseVerifier, of which package
// volume/persistentvolume has one, it deletes nothing.
package nfs
