// Package volumemanager is a node's volume manager: it sets the volumes of pods
// up, keeps a record of each below the root directory, and tears them down
// again. It does not do all that a kubelet does: LIMITS.md, beside this file, says
// what is refused, told or done otherwise.
//
// # The life of one volume
//
// Each volume of a pod goes this way, and the files are named after its steps. The
// [Manager] is the door (manager.go, which also puts the parts together). Behind it a
// reconciler decides, and an operation executor acts. They share the desired state of the world
// (desired.go) and the actual one, which have one entry for each volume of a pod
// (podvolume.go). A plugin is added by [Config].Plugins alone; volume/README.md says how one is
// written.
//
//	declare   desired.go    [Manager.PutPod], [Manager.DeletePod]: what is wanted
//	decide    reconcile.go  compare the desired with the actual state: one operation, or none
//	resolve   setup.go      the claim's PersistentVolume (internal/podspec), and the plugin;
//	                        nothing is touched
//	admit     admission.go  refuse what would hide, replace or take another volume
//	                        (nodeneeds.go: a device, a label, or that it is for one pod only)
//	record    setup.go      write what may be mounted from now on, and sync it
//	act       setup.go      stage its device, if it has one (nodeneeds.go, internal/devices), and
//	                        the plugin's SetUp, or a block volume's (internal/devices)
//	grow      growth.go     where its claim says that it was enlarged: before the SetUp, or once
//	                        it is mounted (internal/growth)
//	confirm   setup.go      note that it is mounted, and tell those that wait (status.go, wait.go)
//
// and back, once the pod is deleted:
//
//	declare   desired.go    it is not wanted any more
//	release   reconcile.go  the pod's containers are gone
//	act       teardown.go   unbind sub-paths, the plugin's TearDown, and the pod's empty directories:
//	                        the pod may go then
//	unstage   teardown.go   the device of the last pod (internal/devices)
//	forget    teardown.go   last its record
//
// The record comes first and goes last. So whatever crashes when, the next start
// (recovery.go) knows what may be mounted and how to undo it. Records are written by
// internal/rootdir, from setup.go, teardown.go and recovery.go; package mountrecord has
// their form.
//
// A failure is tried again after a pause that grows (pauseAfter in reconcile.go), or when
// an object that the volume depends on has changed (internal/dependencies). A mount that vanishes though
// nothing here has unmounted it is made again (vanished.go). The queue is package work's.
//
// An unmount that hangs keeps its own volume alone. The plugin's TearDown climbs the ladder
// of package mount: normal, forced, and lazily in the end, as the plugin allows. What was
// detached lazily stays on record until its file system is gone (package lazyunmount). Each
// retry looks for it anew (unapply in teardown.go): after pauses of up to about two
// minutes (work.LastPause), and as often as it takes. The tear-down has no limit of its own: without
// a ladder, an unmount that hangs is waited for until it ends or the manager stops.
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
// [Manager.ContainerMounts] says what a runtime must bind into one container, and how;
// package containermounts finds it out, binds sub-paths, and has the words of OCI, CRI
// and docker for it. The tear-down of a volume unbinds its sub-paths first.
//
// # The root directory
//
// A [Manager] owns its root directory while [Manager.Run] runs: a lock below it keeps
// every other manager out.
//
// The root directory has the kubelet's layout (pods/, plugins/) plus podvol/,
// which is the manager's own:
//
//	podvol/lock        held while a manager runs; names its holder
//	podvol/records     the journal of the volumes' records
//	podvol/records.*   its proof, and copies of damaged ones; see [DamagedError]
//	podvol/claims/     persistentvolume's claims and volumes, where a program binds them
//	podvol/token.key   the key of objects/localtoken, where a program issues tokens
package volumemanager
