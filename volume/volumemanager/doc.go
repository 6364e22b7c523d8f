// Package volumemanager is a node's volume manager: it sets the volumes of pods
// up, keeps a record of each below the root directory, and tears them down
// again.
//
// A [Manager] owns its root directory while [Manager.Run] runs: a lock below
// it keeps every other manager out. For each volume of a pod the manager
// resolves the claim, if there is one, to its PersistentVolume, finds the
// plugin, writes a record and syncs it, and only then lets the plugin act. The
// record goes after the volume's directory is gone. So whatever crashes when,
// the next start knows what may be mounted and how to undo it.
//
// Volumes of one pod are worked on side by side, one operation at a time for
// each volume, and none waits for another: a server that does not answer
// delays its own volume only.
//
// A device that its plugin mounts once per node is mounted before the first of
// its pods' volumes and unmounted after the last, by the records of these
// alone. A volume that must be attached waits until the node's status lists it
// in use and it is reported attached: see [Manager.VolumesInUse],
// [Manager.ReportedInUse] and [Manager.SetVolumesAttached].
//
// # Into the container
//
// [Manager.ContainerMounts] says what a runtime must bind into one container,
// and how; package runtimemounts says it in the words of OCI, CRI and docker. A
// whole volume is bound from its own directory. A part of it (subPath,
// subPathExpr) is bound first, by the manager and by descriptor, to
//
//	pods/<pod's UID>/volume-subpaths/<spec's name>/<container>/<index of the volumeMount>
//
// since containers can exchange what lies inside their volumes: what was found
// beneath the volume (package util/subpath says how) is what is bound, whatever
// its name leads to by then. That bind has the flags of the volume's mount.
//
// Asking again leaves what is bound already, and binds anew what a name leads to
// something else by now: the file of a ConfigMap that was updated, for example.
// A container that runs goes on seeing what it was started with; only one that
// is started after the new call sees the other. Between the unmount of the old
// and the bind of the new the place is empty, so whoever asks again must not be
// about to start a container with an earlier answer. A missing sub-path is made,
// unless the volume is read-only: then it is an error, also for a ConfigMap,
// whose misspelt key would become an empty directory otherwise. Unlike the
// kubelet, an expression that expands to nothing is refused and not taken for
// the whole volume.
//
// Mount points of volumes inside other volumes are made beforehand, where the
// outer one is writable on the host, be it read-only in the container.
//
// The tear-down of a volume unmounts first whatever the mount table shows below
// its volume-subpaths, deepest first. So there is no record of sub-paths, and it
// does not matter how whoever bound them ended.
//
// # The root directory
//
// The root directory has the kubelet's layout (pods/, plugins/) plus podvol/,
// which is the manager's own:
//
//	podvol/lock        held while a manager runs; names its holder
//	podvol/records     the journal of the volumes' records
//	podvol/claims/     persistentvolume's claims and volumes, where a program binds them
//	podvol/bindings/   what versions without these have bound, until it is taken over
//	podvol/token.key   the key of objects/localtoken, where a program issues tokens
package volumemanager
