package embedded

import (
	"context"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// lastApplied is the annotation of claims and volumes that were applied: their
// last declared fields. Others have none.
const lastApplied = "podvol.io/last-applied-configuration"

// appliedBy is the annotation with the program that applied an object last
// ([Config.Manager]).
const appliedBy = "podvol.io/applied-by"

// bindCompleted is on a claim once it has its volume.
const bindCompleted = "pv.kubernetes.io/bind-completed"

// foreign are annotations of bindings and of storage that is being made, which are
// this cluster's to write: a manifest that has them was written down from another.
var foreign = [...]string{
	bindCompleted,
	"pv.kubernetes.io/bound-by-controller",
	"volume.kubernetes.io/selected-node",
	"volume.kubernetes.io/storage-provisioner",
	"volume.beta.kubernetes.io/storage-provisioner",
	lastApplied, appliedBy, pvapi.AwaitsClaimAnnotation, pvapi.LostClaimAnnotation, persistentvolume.ProvisioningFinalizer,
}

// localVolumeNode is on volumes that discovery has stored, and lets this node's plugin
// clean them (package local). It is not taken from a manifest, which may name any file
// system: a user who declares a disk deletes its data by hand. Two similar annotations
// are taken. podvol.io/local-volume-id names the volume's disk, and only has any other
// one refused at the mount. provisioned.podvol.io/ names a volume's options when it was
// made, so a restored volume is reclaimed like before: its plugin deletes only in its own
// directories, and there only what its marks name.
const localVolumeNode = "podvol.io/local-volume-node"

// declarable copies an object without what only a cluster writes.
func declarable(object metav1.Object) metav1.Object {
	c := object.(runtime.Object).DeepCopyObject().(metav1.Object)
	c.SetResourceVersion("")
	c.SetDeletionTimestamp(nil)
	c.SetDeletionGracePeriodSeconds(nil)
	c.SetFinalizers(nil) // nothing here would remove them
	c.SetManagedFields(nil)
	switch c := c.(type) {
	case *v1.PersistentVolumeClaim:
		ownPart(kindClaim, &c.ObjectMeta)
		c.Status = v1.PersistentVolumeClaimStatus{}
	case *v1.PersistentVolume:
		ownPart(kindVolume, &c.ObjectMeta)
		c.Status = v1.PersistentVolumeStatus{}
		if c.Spec.ClaimRef != nil {
			c.Spec.ClaimRef.ResourceVersion = ""
		}
	}
	return c
}

// setDefaults gives a claim or volume the values of fields that no user has
// declared, as the API does (SetDefaults_PersistentVolume and
// SetDefaults_PersistentVolumeClaimSpec, Kubernetes v1.37). They are not noted as
// declared.
func setDefaults(object metav1.Object) {
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		if o.Spec.VolumeMode == nil {
			o.Spec.VolumeMode = new(v1.PersistentVolumeFilesystem)
		}
	case *v1.PersistentVolume:
		if o.Spec.VolumeMode == nil {
			o.Spec.VolumeMode = new(v1.PersistentVolumeFilesystem)
		}
		if o.Spec.PersistentVolumeReclaimPolicy == "" {
			o.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		}
	}
}

// awaitClaim marks a volume whose claimRef has got a UID from a manifest: no claim
// here has had it yet, so that nothing is reclaimed for want of that claim.
// Stored is the volume before, nil for one that is made.
func awaitClaim(stored, next *v1.PersistentVolume) {
	ref := next.Spec.ClaimRef
	if ref == nil || ref.UID == "" || stored != nil && stored.Spec.ClaimRef != nil && stored.Spec.ClaimRef.UID != "" {
		return
	}
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, pvapi.AwaitsClaimAnnotation, string(ref.UID))
}

func ownPart(kind string, meta *metav1.ObjectMeta) {
	meta.UID = declaredUID(kind, meta)
	meta.CreationTimestamp = metav1.Time{}
	meta.OwnerReferences = nil // their UIDs mean nothing here, and it would go for want of its owner
	for name := range meta.Annotations {
		if slices.Contains(foreign[:], name) || kind == kindVolume && name == localVolumeNode {
			delete(meta.Annotations, name)
		}
	}
}

// declaredUID returns the UID that a manifest itself gives an object. One that was
// made of its name alone is none.
func declaredUID(kind string, meta *metav1.ObjectMeta) types.UID {
	if meta.UID == objects.DerivedUID(kind, meta.Namespace, meta.Name) {
		return ""
	}
	return meta.UID
}

// isAwaited reports whether a stored volume waits for the claim of that UID: the two
// come from an earlier record. No other declared UID is given to an object, since each
// store that takes the manifest would give the same, and provisioners know a claim's
// data by its UID.
func (c *Cluster) isAwaited(ctx context.Context, ref volume.ObjectRef, uid types.UID) (bool, error) {
	if ref.Kind != kindClaim || uid == "" {
		return false, nil
	}
	volumes, err := objects.List[*v1.PersistentVolume](ctx, c.objects, kindVolume, "")
	return slices.ContainsFunc(volumes, func(pv *v1.PersistentVolume) bool {
		claim := pv.Spec.ClaimRef
		return pvapi.AwaitsClaim(pv) && claim.UID == uid && claim.Namespace == ref.Namespace && claim.Name == ref.Name
	}), err
}

// makeWay deletes a claim that has no storage, and gets none, if a volume has come
// that waits for the claim of the declared UID: the claim was declared before it.
func (c *Cluster) makeWay(ctx context.Context, ref volume.ObjectRef, stored, declared metav1.Object) (gone bool, err error) {
	_, bound := stored.GetAnnotations()[bindCompleted]
	if bound || stored.GetUID() == declared.GetUID() || slices.Contains(stored.GetFinalizers(), persistentvolume.ProvisioningFinalizer) {
		return false, nil
	}
	if awaited, err := c.isAwaited(ctx, ref, declared.GetUID()); err != nil || !awaited {
		return false, err
	}
	err = c.objects.Delete(ctx, ref, objects.Preconditions{UID: stored.GetUID(), ResourceVersion: stored.GetResourceVersion()})
	if err != nil {
		return false, err
	}
	if len(stored.GetFinalizers()) > 0 {
		return false, ErrBeingDeleted
	}
	return true, nil
}
