// Package nfs mounts exports of NFS servers: plugin kubernetes.io/nfs, inline
// or by a PersistentVolume.
//
// Whether a share is mounted is asked of the mount table; the share itself is
// never touched, since a server may not answer and a share may be closed to root.
// [Config] has the administrator's choices; all but the first are off by default.
//
// # Servers that do not answer
//
// After some mounts without an answer, further ones from the same server are
// refused at once with a [ServerDownError], until one that is let through
// succeeds ([BreakerConfig]). Existing mounts are not concerned. The state of
// each server is in the volume manager's Explain (Server of a volume's status)
// and its metric podvol_volume_server_up; volumesource.HealthOf asks the plugin itself.
// Teardown goes from a normal unmount to a forced and a lazy one
// (Config.ForceAfter, LazyAfter).
//
// A call that hangs when a volume is detached, as the question for its metrics,
// keeps its thread until the server answers; nothing can end it before. The last
// use of an NFSv4 volume, an unmount or such a question, tells the server
// good-bye and waits for its answer (Linux, nfs4_proc_destroy_clientid; measured
// on 6.1): up to ten seconds, one after the other, while the server calls the
// client busy since it has other mounts. Where the server is gone for good it
// waits until the mount's time is over, three minutes with the usual timeo and
// retrans of nfs(5). The volume itself is gone by then and nothing waits for
// that.
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
// made for make-directory.podvol.io/<volume>, as far as the node's [InlinePolicy]
// allows it to volumes of that server. Anything else is [ErrNotAllowed].
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
//     ${pvc.metadata.namespace} and ${pv.metadata.name}; default: the latter. No
//     path may lead out of the share, and two volumes never get the same. An
//     existing directory is never used.
//   - mountPermissions: the directory's mode in octal; default, also of "0":
//     [ProvisionConfig]'s.
//   - onDelete: delete, archive (rename it to archived-…) or retain; default:
//     [ProvisionConfig]'s.
//
// Provisioned directories are marked in the share's directory.podvol, which no
// volume can have or see. Only a marked directory is ever deleted or archived,
// and only for the volume that it was made for. Delete asks the host as recycling
// does: without the role volume.ReleaseVerifier, of which package
// volume/persistentvolume has one, it deletes nothing.
package nfs
