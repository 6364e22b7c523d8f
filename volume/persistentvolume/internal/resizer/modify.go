package resizer

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
)

// recordModification writes down that a bound claim is to have another
// VolumeAttributesClass than its volume has, and has the volume's plugin give it that one's
// parameters (KEP-3751). Where another process does so, the record is Pending until that takes
// it over.
func (r *Resizer) recordModification(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
	target := ptr.Deref(claim.Spec.VolumeAttributesClassName, "")
	recorded := claim.Status.ModifyVolumeStatus
	plugin, ours := r.modifierOf(pv)
	if recorded != nil && recorded.Status != v1.PersistentVolumeClaimModifyVolumePending && recorded.Status != v1.PersistentVolumeClaimModifyVolumeInfeasible {
		switch {
		case !ours:
			r.note(attributesOf(claim), claim, fmt.Errorf("another controller gives it the VolumeAttributesClass %q", recorded.TargetVolumeAttributesClassName))
			return claim, nil
		case recorded.TargetVolumeAttributesClassName == target || !r.giveUpModification(claim):
			return r.modify(ctx, claim, pv, plugin, recorded.TargetVolumeAttributesClassName)
		}
	}
	if recorded != nil && recorded.TargetVolumeAttributesClassName != target {
		r.Operations.Forget(modifyKey(claim, recorded.TargetVolumeAttributesClassName))
	}
	if target == "" || target == ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, "") {
		r.Events.Forget(attributesOf(claim))
		r.note(attributesOf(claim), claim, nil)
		if recorded == nil {
			return claim, nil
		}
		return r.setModification(ctx, claim, nil)
	}
	if ours && isInfeasible(recorded, target) {
		r.note(attributesOf(claim), claim, errors.New(cmp.Or(messageOf(claim, v1.PersistentVolumeClaimVolumeModifyVolumeError), string(recorded.Status))))
		return claim, nil
	}
	if ours {
		return r.modify(ctx, claim, pv, plugin, target)
	}
	r.awaitModification(ctx, claim, pv, target)
	if recorded != nil && recorded.TargetVolumeAttributesClassName == target {
		return claim, nil
	}
	return r.setModification(ctx, claim, &v1.ModifyVolumeStatus{TargetVolumeAttributesClassName: target, Status: v1.PersistentVolumeClaimModifyVolumePending})
}

func isInfeasible(recorded *v1.ModifyVolumeStatus, target string) bool {
	return recorded != nil && recorded.TargetVolumeAttributesClassName == target && recorded.Status == v1.PersistentVolumeClaimModifyVolumeInfeasible
}

// modifierOf returns the plugin that changes a volume, if that is not done elsewhere.
func (r *Resizer) modifierOf(pv *v1.PersistentVolume) (volume.ModifiableVolumePlugin, bool) {
	if pvapi.IsOfDriver(pv, pvapi.PluginsOf(r.Plugins)) {
		return nil, false
	}
	modifier, ours := r.pluginOf(pv).(volume.ModifiableVolumePlugin)
	return modifier, ours
}

func (r *Resizer) attributesClass(ctx context.Context, claim *v1.PersistentVolumeClaim, name string) (*storagev1.VolumeAttributesClass, error) {
	class, err := objects.Get[*storagev1.VolumeAttributesClass](ctx, r.Objects, volume.NewObjectRef(pvapi.KindAttributesClass, "", name))
	if errors.Is(err, volume.ErrNotFound) {
		r.note(attributesOf(claim), claim, pvapi.NoAttributesClass(name))
		r.Events.EventOnceFor(attributesOf(claim), claim, v1.EventTypeWarning, reasonModifyFailed, pvapi.NoAttributesClass(name).Error(), "")
		return nil, nil
	}
	return class, err
}

// awaitModification tells what a claim waits for whose volume is not changed here.
func (r *Resizer) awaitModification(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, target string) {
	if class, err := r.attributesClass(ctx, claim, target); class == nil && err == nil {
		return
	}
	eventType, reason, message := v1.EventTypeNormal, reasonExternalModifying, fmt.Sprintf("waiting for an external controller to give this PVC the VolumeAttributesClass %q", target)
	if plugin := r.pluginOf(pv); plugin != nil && !pvapi.IsOfDriver(pv, pvapi.PluginsOf(r.Plugins)) {
		eventType, reason, message = v1.EventTypeWarning, reasonModifyFailed, fmt.Sprintf("it is not given the VolumeAttributesClass %q: the plugin %s cannot change volumes", target, plugin.GetPluginName())
	}
	r.note(attributesOf(claim), claim, errors.New(message))
	r.Events.EventOnceFor(attributesOf(claim), claim, eventType, reason, message, "")
}

// modify has a plugin give a volume the parameters of a class, which the claim says since
// before. Until the claim says what came of it, another process asks the plugin again, which is
// idempotent.
func (r *Resizer) modify(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, plugin volume.ModifiableVolumePlugin, target string) (*v1.PersistentVolumeClaim, error) {
	class, err := r.attributesClass(ctx, claim, target)
	if err != nil {
		return claim, err
	}
	now := v1.ModifyVolumeStatus{TargetVolumeAttributesClassName: target, Status: v1.PersistentVolumeClaimModifyVolumeInProgress}
	if before := claim.Status.ModifyVolumeStatus; class == nil && (before == nil || before.Status != now.Status) { // nothing is under way
		now.Status = v1.PersistentVolumeClaimModifyVolumePending
	}
	if claim, err = r.setModification(ctx, claim, &now); err != nil {
		return claim, err
	}
	key := modifyKey(claim, target)
	state, err := r.Operations.Do(operation.Task{Key: key, Volume: pv.Name, Class: pvapi.ClaimClass(claim, ""), About: pvapi.ClaimRef(pvapi.NameOf(claim)), Inherited: true,
		Do: func(ctx context.Context) error {
			if class == nil {
				return volume.NothingDone(pvapi.NoAttributesClass(target))
			}
			return plugin.Modify(ctx, volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false), class.DeepCopy())
		}})
	switch {
	case state == operation.Running:
		r.Events.PluginSlow(claim, err)
		return claim, nil
	case state == operation.Done:
		return r.modified(ctx, claim, pv, target)
	case err == nil || class == nil:
		return claim, nil
	}
	failed := fmt.Errorf("it is not given the VolumeAttributesClass %q: %w", target, err)
	r.note(attributesOf(claim), claim, failed)
	r.Events.EventOnceFor(attributesOf(claim), claim, v1.EventTypeWarning, reasonModifyFailed, fmt.Sprintf("it is not given the VolumeAttributesClass %q", target), err.Error()) // once, whatever its details
	if !errors.Is(err, volume.ErrModifyInfeasible) {
		return r.setError(ctx, claim, v1.PersistentVolumeClaimVolumeModifyVolumeError, err)
	}
	now.Status = v1.PersistentVolumeClaimModifyVolumeInfeasible
	claim, unwritten := r.setModification(ctx, claim, &now, v1.PersistentVolumeClaimCondition{Type: v1.PersistentVolumeClaimVolumeModifyVolumeError, Message: err.Error()})
	if unwritten == nil {
		r.Operations.Forget(key)
	}
	return claim, unwritten
}

// modified writes down that a volume has another class: first in the volume.
func (r *Resizer) modified(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, target string) (*v1.PersistentVolumeClaim, error) {
	if ptr.Deref(pv.Spec.VolumeAttributesClassName, "") != target {
		next := pv.DeepCopy()
		next.Spec.VolumeAttributesClassName = &target
		if _, err := r.Writer.UpdateVolume(ctx, pv, next); err != nil {
			return claim, err
		}
	}
	claim, err := r.setModification(ctx, claim, nil)
	if err != nil {
		return claim, err
	}
	r.Operations.Forget(modifyKey(claim, target))
	r.Events.Forget(attributesOf(claim))
	r.note(attributesOf(claim), claim, nil)
	r.Events.Event(claim, v1.EventTypeNormal, reasonModified, fmt.Sprintf("the volume has the VolumeAttributesClass %q", target))
	return claim, nil
}

func modifyKey(claim *v1.PersistentVolumeClaim, target string) string {
	return fmt.Sprintf("modify %s to %q", claim.UID, target)
}

// giveUpModification reports whether a claim that asks for another class than its volume was
// to get can have that: the attempts have failed, and the last one is known to have ended. They
// are forgotten.
func (r *Resizer) giveUpModification(claim *v1.PersistentVolumeClaim) bool {
	key := modifyKey(claim, claim.Status.ModifyVolumeStatus.TargetVolumeAttributesClassName)
	now := r.Operations.Status(key)
	if now.State != operation.Failed || now.Failure == nil || volume.IsUncertain(now.Failure) {
		return false
	}
	r.Operations.Forget(key)
	return true
}

// setModification records how far a change of attributes is; nil: none is asked for. A
// condition says what goes on, or why it does not.
func (r *Resizer) setModification(ctx context.Context, claim *v1.PersistentVolumeClaim, now *v1.ModifyVolumeStatus, conditions ...v1.PersistentVolumeClaimCondition) (*v1.PersistentVolumeClaim, error) {
	if ptr.Equal(claim.Status.ModifyVolumeStatus, now) {
		return claim, nil
	}
	if now != nil && now.Status == v1.PersistentVolumeClaimModifyVolumeInProgress {
		conditions = append(conditions, v1.PersistentVolumeClaimCondition{Type: v1.PersistentVolumeClaimVolumeModifyingVolume,
			Message: fmt.Sprintf("the volume is being given the VolumeAttributesClass %q", now.TargetVolumeAttributesClassName)})
	}
	return r.Writer.ChangeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) {
		s.ModifyVolumeStatus = now
		s.Conditions = pvapi.WithoutConditions(s.Conditions, v1.PersistentVolumeClaimVolumeModifyingVolume, v1.PersistentVolumeClaimVolumeModifyVolumeError)
		for _, c := range conditions {
			c.Status, c.LastTransitionTime = v1.ConditionTrue, metav1.Now()
			s.Conditions = append(s.Conditions, c)
		}
	})
}

// attributesOf names the state of a claim's attributes, for events.
func attributesOf(claim *v1.PersistentVolumeClaim) types.UID { return claim.UID + "/attributes" }
