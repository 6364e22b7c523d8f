// Package persistentvolume is the cluster side of PersistentVolumes: it gives each claim
// the volume that fits, as Kubernetes' PersistentVolume controller does. A node never binds
// claims; it only checks them ([claimbinding.Check]).
//
//   - [Controller] works all the time, against a cluster's API. It binds claims, makes,
//     reclaims and protects volumes, keeps the phases of both, and tells of it by events.
//   - It makes the claims of ephemeral volumes, and records growth that claims ask for.
//   - [Controller.Place] places pods where their volumes can be.
//   - [index.Index] finds the volume for a claim.
//
// # Beside kube-controller-manager
//
// Kubernetes' own controller manager binds claims as well, and two binders would take each
// other's volumes for their own. There are two ways out.
//
// The safe one is to leave the binding to it, and to be an external provisioner:
// [ControllerConfig].Provisioners. The controller then writes no claimRef, no volumeName
// and no status, and touches nothing that is not given to one of its names by StorageClass
// and annotation.
//
// The other one is to do everything. The controller manager must be started without the
// controllers whose work this is:
//
//	--controllers=*,-persistentvolume-binder-controller,-persistentvolume-expander-controller,-persistentvolumeclaim-protection-controller,-persistentvolume-protection-controller,-ephemeral-volume-controller
//
// (before v1.28 they were called persistentvolume-binder, persistentvolume-expander,
// pvc-protection, pv-protection and ephemeral-volume). The scheduler stays as it is: it
// selects nodes and pre-binds volumes by claimRef, which both kinds of controllers
// complete. Only external resizers expand in-tree volumes then.
//
// Either way one controller runs at a time: package election (of objects/cluster) holds a
// lease for it. An earlier one's late changes are refused by their resourceVersion, and
// deletions by that or the UID. What it creates carries none: a volume or claim that
// arrives late may appear while the next one works, which finds it by its name: the one of
// its claim or pod.
//
// An API server whose database was restored counts versions anew from the restored one: a
// running controller has seen later ones. It does no harm, since the API is asked before
// data goes, but gets only conflicts until the count has passed: start it again after a
// restore.
//
// A cluster that goes from one way to the other has two kinds of volumes and claims:
//
//   - A volume names its provisioner (pv.kubernetes.io/provisioned-by). One with a name of
//     its own is deleted only by a controller that has that name in Provisioners, or a
//     plugin of that name; one of kubernetes.io/… only by the controller that does
//     everything. Before the change, set the reclaim policy of volumes that no controller
//     would delete any more to Retain, or delete their claims.
//   - Wait until no claim has [ProvisioningFinalizer]: the controller that has begun storage
//     must finish it.
//   - A StorageClass keeps its provisioner for ever, so the other way needs classes of its
//     own.
//
// # Where claims and volumes are kept
//
// An API forgets nothing, and an in-memory store everything. Package persisted (of objects)
// keeps claims and volumes on disk, so that no volume that was ever given to a claim is
// given to another one. Package embedded joins both for an agent of one machine.
//
// Before a released volume is emptied or deleted, [release.Verifier] makes sure that it is
// that volume, that its claim has left it, and that no pod uses its data in any other way.
//
// # Inside
//
// [Controller] works on one object after the other, from a queue (controller.go), in one of
// two roles: binder does everything, externalProvisioner (external.go) works beside another
// controller. Both share a provisioner, which makes storage, and a reclaimer, which empties
// and deletes it. A binder also has a resizer, for bound claims that ask for more. The
// placer finds nodes for pods. All of them read from cluster, the newest version of each
// object, and write by writer, which keeps the phases of claims and volumes too. What follows
// from a new version is in changes.go. Storage is made, emptied and deleted beside the queue,
// by package operation. Who may have a volume now is decided in one place, the table of
// package reservation.
package persistentvolume
