package persistentvolume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

const kindAttributesClass = "VolumeAttributesClass"

// attributesClassFor returns the VolumeAttributesClass with which a claim's volume
// is to be made, nil for none (KEP-3751). It must be one of the provisioner's.
func (c *Controller) attributesClassFor(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (*storagev1.VolumeAttributesClass, error) {
	name := ptr.Deref(claim.Spec.VolumeAttributesClassName, "")
	if name == "" {
		return nil, nil
	}
	attributes, err := objects.Get[*storagev1.VolumeAttributesClass](ctx, c.objects, volume.NewObjectRef(kindAttributesClass, "", name))
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return nil, noAttributesClass(name)
	case err != nil:
		return nil, err
	case attributes.DriverName != class.Provisioner:
		return nil, volume.Invalid("volumeAttributesClassName", "is %q, a class of the driver %q, and StorageClass %q has the provisioner %q; use a class of that",
			name, attributes.DriverName, class.Name, class.Provisioner)
	}
	return attributes, nil
}

func noAttributesClass(name string) error {
	return fmt.Errorf("volumeattributesclass.storage.k8s.io %q not found; create it", name)
}

// recordModification writes down that a bound claim is to have another
// VolumeAttributesClass than its volume has: as Pending, until whoever can modify
// the volume takes it up, whose record it is from then on (KEP-3751).
func (c *Controller) recordModification(ctx context.Context, claim *v1.PersistentVolumeClaim) (*v1.PersistentVolumeClaim, error) {
	target := ptr.Deref(claim.Spec.VolumeAttributesClassName, "")
	wanted := target != "" && target != ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, "")
	recorded := claim.Status.ModifyVolumeStatus
	if recorded != nil && recorded.Status != v1.PersistentVolumeClaimModifyVolumePending && recorded.Status != v1.PersistentVolumeClaimModifyVolumeInfeasible {
		return claim, nil // it is being modified
	}
	if !wanted {
		c.events.settled(attributesOf(claim))
		if recorded == nil {
			return claim, nil
		}
		return c.changeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) { s.ModifyVolumeStatus = nil })
	}
	c.tellOfModification(ctx, claim, target)
	if recorded != nil && recorded.TargetVolumeAttributesClassName == target {
		return claim, nil
	}
	return c.changeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) {
		s.ModifyVolumeStatus = &v1.ModifyVolumeStatus{TargetVolumeAttributesClassName: target, Status: v1.PersistentVolumeClaimModifyVolumePending}
	})
}

func (c *Controller) tellOfModification(ctx context.Context, claim *v1.PersistentVolumeClaim, target string) {
	_, err := c.objects.Get(ctx, volume.NewObjectRef(kindAttributesClass, "", target))
	if errors.Is(err, volume.ErrNotFound) {
		c.events.isOf(attributesOf(claim), claim, v1.EventTypeWarning, reasonModifyFailed, noAttributesClass(target).Error(), "")
		return
	}
	c.events.isOf(attributesOf(claim), claim, v1.EventTypeNormal, reasonExternalModifying,
		fmt.Sprintf("waiting for an external controller to give this PVC the VolumeAttributesClass %q", target), "")
}

// attributesOf names the state of a claim's attributes, for events.
func attributesOf(claim *v1.PersistentVolumeClaim) types.UID { return claim.UID + "/attributes" }
