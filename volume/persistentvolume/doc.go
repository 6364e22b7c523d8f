// Package persistentvolume is the cluster side of PersistentVolumes: it gives
// each claim the volume that fits, as Kubernetes' PersistentVolume controller
// does.
//
// [Index] chooses, [Binder] binds: it writes the choice into a ledger on disk
// before it uses it, and the ledger outranks every object store. So a volume
// that was ever given to a claim is never given to another one, even if the
// store is an in-memory one that forgets; data is never shown to another
// claim. A node never binds claims; it only checks them
// ([volume.CheckBinding]).
//
// [Controller] does the same for a whole cluster, against its API, all the time:
// it also makes, reclaims and protects volumes and keeps the phases of both, and
// places pods where their volumes can be ([Controller.Place]). It needs no
// ledger, since an API forgets nothing; a store that does becomes one that does
// not by [OpenRecords].
//
// Before a released volume is emptied or deleted, [ReleaseVerifier] makes sure
// that it is that volume, that its claim has left it, and that nobody uses its
// data in any other way.
package persistentvolume
