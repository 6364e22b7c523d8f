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
// The root directory has the kubelet's layout (pods/, plugins/) plus podvol/,
// which is the manager's own:
//
//	podvol/lock        held while a manager runs; names its holder
//	podvol/records     the journal of the volumes' records
//	podvol/bindings/   the ledger of persistentvolume, where a program binds claims
//	podvol/token.key   the key of objects/localtoken, where a program issues tokens
package volumemanager
