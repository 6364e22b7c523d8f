package resizer

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
)

// expansion is what a plugin has made of a volume.
type expansion struct {
	reached resource.Quantity
	node    bool // it is the node's turn
}

// expanderOf returns the plugin that makes a volume larger, if that is not done elsewhere.
func (r *Resizer) expanderOf(pv *v1.PersistentVolume) (volume.VolumePlugin, bool) {
	if pvapi.IsOfDriver(pv, pvapi.PluginsOf(r.Plugins)) {
		return nil, false
	}
	plugin := r.pluginOf(pv)
	return plugin, plugin != nil && volume.CanExpand(plugin)
}

func expandKey(claim *v1.PersistentVolumeClaim, target resource.Quantity) string {
	return fmt.Sprintf("expand %s to %d", claim.UID, target.Value())
}

// expand has a plugin make a volume larger, whose claim says that since before. Until the claim
// says what comes next, another process asks the plugin again, which is idempotent.
func (r *Resizer) expand(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, plugin volume.VolumePlugin, target resource.Quantity) (*v1.PersistentVolumeClaim, error) {
	key := expandKey(claim, target)
	state, err := r.Operations.Do(r.expandTask(key, claim, pv, plugin, target))
	switch {
	case state == operation.Running:
		r.Events.PluginSlow(claim, err)
		return claim, nil
	case state == operation.Done:
		return r.expanded(ctx, claim, pv, key, target)
	case err == nil:
		return claim, nil
	}
	r.note(claim.UID, claim, fmt.Errorf("it is not made larger: %w", err))
	r.Events.EventOnce(claim, v1.EventTypeWarning, reasonResizeFailed, "it is not made larger", fmt.Sprintf("to %s: %v", target.String(), err)) // once, whatever its details
	if !errors.Is(err, volume.ErrResizeInfeasible) {
		return r.setError(ctx, claim, v1.PersistentVolumeClaimControllerResizeError, err)
	}
	claim, failed := r.setInfeasible(ctx, claim, err)
	if failed == nil {
		r.Operations.Forget(key)
	}
	return claim, failed
}

func (r *Resizer) expandTask(key string, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, plugin volume.VolumePlugin, target resource.Quantity) operation.Task {
	spec, old := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false), pv.Spec.Capacity[v1.ResourceStorage]
	if target.Cmp(old) < 0 {
		target = old // it was reached before
	}
	return operation.Task{Key: key, Volume: pv.Name, Class: pvapi.ClaimClass(claim, ""), About: pvapi.ClaimRef(pvapi.NameOf(claim)), Inherited: true,
		Do: func(ctx context.Context) error {
			reached, node, err := volume.Expand(ctx, plugin, spec, target, old)
			if err == nil && reached.Cmp(target) < 0 {
				err = fmt.Errorf("plugin %s says that it is done, and the volume has %s of %s", plugin.GetPluginName(), reached.String(), target.String())
			}
			if err == nil {
				r.expansions.Store(key, expansion{reached, node})
			}
			return err
		}}
}

// expanded writes down what a plugin has done: first in the volume, then what that means for
// the claim.
func (r *Resizer) expanded(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, key string, target resource.Quantity) (*v1.PersistentVolumeClaim, error) {
	found, _ := r.expansions.Load(key)
	done := found.(expansion)
	if err := r.setCapacity(ctx, pv, done, claim.Status.Capacity[v1.ResourceStorage]); err != nil {
		return claim, err
	}
	var err error
	if done.node {
		if claim, err = r.setGrowth(ctx, claim, target, v1.PersistentVolumeClaimNodeResizePending); err == nil {
			r.Events.Event(claim, v1.EventTypeNormal, reasonNodeResize, fmt.Sprintf("the node that mounts the volume is to make its file system as large as it is, %s", done.reached.String()))
		}
	} else {
		claim, err = r.finishGrowth(ctx, claim, target, done.reached)
	}
	if err == nil {
		r.Operations.Forget(key)
		r.expansions.Delete(key)
	}
	return claim, err
}

// setCapacity writes down how large a volume is, and how large its file system still is: a claim
// that has the volume after this one goes by that.
func (r *Resizer) setCapacity(ctx context.Context, pv *v1.PersistentVolume, done expansion, before resource.Quantity) error {
	if has := pv.Spec.Capacity[v1.ResourceStorage]; has.Cmp(done.reached) >= 0 {
		return nil
	}
	next := pv.DeepCopy()
	next.Spec.Capacity = pvapi.SetEntry(next.Spec.Capacity, v1.ResourceStorage, done.reached)
	if _, known := next.Annotations[pvapi.AnnPreResizeCapacity]; done.node && !known {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, pvapi.AnnPreResizeCapacity, before.String())
	}
	_, err := r.Writer.UpdateVolume(ctx, pv, next)
	return err
}

// forgetSizeBefore removes what a volume says of its smaller file system, once a node has made
// that as large as the volume.
func (r *Resizer) forgetSizeBefore(ctx context.Context, pv *v1.PersistentVolume, has resource.Quantity) error {
	_, known := pv.Annotations[pvapi.AnnPreResizeCapacity]
	if size := pv.Spec.Capacity[v1.ResourceStorage]; !known || has.Cmp(size) < 0 {
		return nil
	}
	next := pv.DeepCopy()
	delete(next.Annotations, pvapi.AnnPreResizeCapacity)
	_, err := r.Writer.UpdateVolume(ctx, pv, next)
	return err
}

// giveUp reports whether a claim that asks for another size than it was to get can have
// that: the attempts at the old size have failed, and the last one is known to have ended. They are forgotten.
func (r *Resizer) giveUp(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, target resource.Quantity) bool {
	if _, ours := r.expanderOf(pv); !ours {
		return false
	}
	key := expandKey(claim, target)
	now := r.Operations.Status(key)
	if now.State != operation.Failed || now.Failure == nil || volume.IsUncertain(now.Failure) {
		return false
	}
	r.Operations.Forget(key)
	return true
}

func (r *Resizer) setInfeasible(ctx context.Context, claim *v1.PersistentVolumeClaim, why error) (*v1.PersistentVolumeClaim, error) {
	return r.Writer.ChangeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) {
		s.AllocatedResourceStatuses = pvapi.SetEntry(s.AllocatedResourceStatuses, v1.ResourceStorage, v1.PersistentVolumeClaimControllerResizeInfeasible)
		s.Conditions = pvapi.WithoutConditions(s.Conditions, v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimControllerResizeError)
		s.Conditions = append(s.Conditions, v1.PersistentVolumeClaimCondition{
			Type: v1.PersistentVolumeClaimControllerResizeError, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(), Message: why.Error(),
		})
	})
}
