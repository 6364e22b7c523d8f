package persistentvolume

import (
	"cmp"
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// DefaultClass returns the name of the default storage class, or "" where
// there is none. Of several, the one created last is it, then the first by
// name, as in Kubernetes.
func DefaultClass(classes []*storagev1.StorageClass) string {
	defaults := slices.DeleteFunc(slices.Clone(classes), func(c *storagev1.StorageClass) bool {
		return c.Annotations[pvapi.AnnDefaultClass] != "true" && c.Annotations[pvapi.AnnDefaultClassBeta] != "true"
	})
	if len(defaults) == 0 {
		return ""
	}
	return slices.MinFunc(defaults, func(a, b *storagev1.StorageClass) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	}).Name
}

// checkClass refuses a class, which may be nil, that the API server would not
// have let in. The meaning of an unknown word is not known, so its claims wait.
func checkClass(class *storagev1.StorageClass) error {
	if class == nil {
		return nil
	}
	switch mode := ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate); mode {
	case storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer:
	default:
		return volume.Invalid("volumeBindingMode", "of StorageClass %q is %q; make it %s or %s", class.Name, mode,
			storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)
	}
	switch policy := policyOf(class); policy {
	case v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRetain:
	default:
		return volume.Invalid("reclaimPolicy", "of StorageClass %q is %q; make it %s or %s", class.Name, policy,
			v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRetain)
	}
	return nil
}

// canBeFilled reports whether the data source of a claim, if there is one, is for the
// provisioner of its class to fill in. Of a class that is not there yet that is not known,
// and counts as true.
func canBeFilled(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, fills func(provisioner string) bool) bool {
	switch {
	case index.DataSourceOf(claim) == "":
		return true
	case class == nil:
		return pvapi.ClaimClass(claim, "") != ""
	}
	return class.Provisioner != noProvisioner && fills(class.Provisioner)
}

// waitsForConsumer reports whether the claims of a class, which may be nil, are bound only
// once a pod that uses them has a node.
func waitsForConsumer(class *storagev1.StorageClass) bool {
	return class != nil && class.VolumeBindingMode != nil && *class.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// policyOf returns what becomes of the class's volumes when their claims are gone.
func policyOf(class *storagev1.StorageClass) v1.PersistentVolumeReclaimPolicy {
	if class.ReclaimPolicy == nil {
		return v1.PersistentVolumeReclaimDelete
	}
	return *class.ReclaimPolicy
}

// attributesClassFor returns the VolumeAttributesClass with which a claim's volume
// is to be made, nil for none (KEP-3751). It must be one of the provisioner's.
func (c *cluster) attributesClassFor(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (*storagev1.VolumeAttributesClass, error) {
	name := ptr.Deref(claim.Spec.VolumeAttributesClassName, "")
	if name == "" {
		return nil, nil
	}
	attributes, err := objects.Get[*storagev1.VolumeAttributesClass](ctx, c.objects, volume.NewObjectRef(pvapi.KindAttributesClass, "", name))
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return nil, pvapi.NoAttributesClass(name)
	case err != nil:
		return nil, err
	case attributes.DriverName != class.Provisioner:
		return nil, volume.Invalid("volumeAttributesClassName", "is %q, a class of the driver %q, and StorageClass %q has the provisioner %q; use a class of that",
			name, attributes.DriverName, class.Name, class.Provisioner)
	}
	return attributes, nil
}
