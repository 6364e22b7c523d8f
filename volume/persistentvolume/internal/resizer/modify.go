package resizer

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// syncModification does the next step where a claim asks for another VolumeAttributesClass than
// its volume has (KEP-3751):
//
//	status       asks for        next
//	none         what it has     nothing
//	none         another class   InProgress by the plugin; Pending where another controller modifies, which takes that over
//	Pending      whatever        as with none
//	InProgress   the same        the plugin's call goes on
//	InProgress   something else  the call goes on; as with none if it has failed for good
//	Infeasible   the same        nothing
//	Infeasible   something else  as with none
func (r *Resizer) syncModification(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
	target, recorded := ptr.Deref(claim.Spec.VolumeAttributesClassName, ""), ptr.Deref(claim.Status.ModifyVolumeStatus, v1.ModifyVolumeStatus{Status: v1.PersistentVolumeClaimModifyVolumePending})
	infeasible := recorded.Status == v1.PersistentVolumeClaimModifyVolumeInfeasible
	inProgress := !infeasible && recorded.Status != v1.PersistentVolumeClaimModifyVolumePending
	same, before := recorded.TargetVolumeAttributesClassName == target, modifyKey(claim, recorded.TargetVolumeAttributesClassName)
	plugin, ours := r.modifierOf(pv)
	if inProgress && ours && !same {
		inProgress = !r.abandon(before)
	}
	if !inProgress && !same {
		r.Operations.Forget(before)
	}
	switch {
	case inProgress && !ours:
		r.note(attributesOf(claim), claim, fmt.Errorf("another controller gives it the VolumeAttributesClass %q", recorded.TargetVolumeAttributesClassName))
		return claim, nil
	case inProgress:
		return r.modify(ctx, claim, pv, plugin, recorded.TargetVolumeAttributesClassName)
	case target == "" || target == ptr.Deref(claim.Status.CurrentVolumeAttributesClassName, ""):
		r.Events.Forget(attributesOf(claim))
		r.note(attributesOf(claim), claim, nil)
		return r.markModification(ctx, claim, nil, nil)
	case ours && infeasible && same:
		r.note(attributesOf(claim), claim, errors.New(cmp.Or(messageOf(claim, v1.PersistentVolumeClaimVolumeModifyVolumeError), string(recorded.Status))))
		return claim, nil
	case ours:
		return r.modify(ctx, claim, pv, plugin, target)
	}
	r.awaitExternalModification(ctx, claim, pv, target)
	if same {
		return claim, nil
	}
	return r.markModification(ctx, claim, &v1.ModifyVolumeStatus{TargetVolumeAttributesClassName: target, Status: v1.PersistentVolumeClaimModifyVolumePending}, nil)
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

// awaitExternalModification tells what a claim waits for whose volume is not changed here.
func (r *Resizer) awaitExternalModification(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, target string) {
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

// modify has a plugin give a volume the parameters of a class.
func (r *Resizer) modify(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, plugin volume.ModifiableVolumePlugin, target string) (*v1.PersistentVolumeClaim, error) {
	class, err := r.attributesClass(ctx, claim, target)
	if err != nil {
		return claim, err
	}
	now := v1.ModifyVolumeStatus{TargetVolumeAttributesClassName: target, Status: v1.PersistentVolumeClaimModifyVolumeInProgress}
	if before := claim.Status.ModifyVolumeStatus; class == nil && (before == nil || before.Status != now.Status) { // nothing is under way
		now.Status = v1.PersistentVolumeClaimModifyVolumePending
	}
	if claim, err = r.markModification(ctx, claim, &now, nil); err != nil {
		return claim, err
	}
	done, claim, err := r.ask(ctx, claim, pv, call{
		key: modifyKey(claim, target), state: attributesOf(claim), reason: reasonModifyFailed, failure: fmt.Sprintf("it is not given the VolumeAttributesClass %q", target), told: class == nil,
		condition: v1.PersistentVolumeClaimVolumeModifyVolumeError, infeasible: volume.ErrModifyInfeasible,
		markInfeasible: func(why error) (*v1.PersistentVolumeClaim, error) {
			now.Status = v1.PersistentVolumeClaimModifyVolumeInfeasible
			return r.markModification(ctx, claim, &now, why)
		},
		do: func(ctx context.Context) error {
			if class == nil {
				return volume.NothingDone(pvapi.NoAttributesClass(target))
			}
			return plugin.Modify(ctx, volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false), class.DeepCopy())
		},
	})
	if !done {
		return claim, err
	}
	return r.modified(ctx, claim, pv, target)
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
	claim, err := r.markModification(ctx, claim, nil, nil)
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

// markModification records how far a change of attributes is, and why it is infeasible; nil: none
// is asked for. A condition says that, too.
func (r *Resizer) markModification(ctx context.Context, claim *v1.PersistentVolumeClaim, now *v1.ModifyVolumeStatus, infeasible error) (*v1.PersistentVolumeClaim, error) {
	if ptr.Equal(claim.Status.ModifyVolumeStatus, now) {
		return claim, nil
	}
	return r.Writer.ChangeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) {
		s.ModifyVolumeStatus = now
		s.Conditions = pvapi.WithoutConditions(s.Conditions, v1.PersistentVolumeClaimVolumeModifyingVolume, v1.PersistentVolumeClaimVolumeModifyVolumeError)
		switch {
		case infeasible != nil:
			setCondition(s, v1.PersistentVolumeClaimVolumeModifyVolumeError, infeasible.Error())
		case now != nil && now.Status == v1.PersistentVolumeClaimModifyVolumeInProgress:
			setCondition(s, v1.PersistentVolumeClaimVolumeModifyingVolume, fmt.Sprintf("the volume is being given the VolumeAttributesClass %q", now.TargetVolumeAttributesClassName))
		}
	})
}

// attributesOf names the state of a claim's attributes, for events.
func attributesOf(claim *v1.PersistentVolumeClaim) types.UID { return claim.UID + "/attributes" }
