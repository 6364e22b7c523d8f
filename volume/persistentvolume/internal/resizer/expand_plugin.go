package resizer

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

// expansion is what a plugin has made of a volume.
type expansion struct {
	reached resource.Quantity
	node    bool // it is the node's turn
}

func expandKey(claim *v1.PersistentVolumeClaim, target resource.Quantity) string {
	return fmt.Sprintf("expand %s to %d", claim.UID, target.Value())
}

// expand has a plugin make a volume larger.
func (r *Resizer) expand(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, plugin volume.VolumePlugin, target resource.Quantity) (*v1.PersistentVolumeClaim, error) {
	claim, err := r.markExpansion(ctx, claim, target, v1.PersistentVolumeClaimControllerResizeInProgress)
	if err != nil {
		return claim, err
	}
	spec, old, wanted := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false), pv.Spec.Capacity[v1.ResourceStorage], target
	if wanted.Cmp(old) < 0 {
		wanted = old // it was reached before
	}
	key := expandKey(claim, target)
	done, claim, err := r.ask(ctx, claim, pv, call{
		key: key, state: claim.UID, reason: reasonResizeFailed, failure: "it is not made larger", details: fmt.Sprintf("to %s: ", target.String()),
		condition: v1.PersistentVolumeClaimControllerResizeError, infeasible: volume.ErrResizeInfeasible,
		markInfeasible: func(why error) (*v1.PersistentVolumeClaim, error) { return r.markExpansionInfeasible(ctx, claim, why) },
		do: func(ctx context.Context) error {
			reached, node, err := volume.Expand(ctx, plugin, spec, wanted, old)
			if err == nil && reached.Cmp(wanted) < 0 {
				err = fmt.Errorf("plugin %s says that it is done, and the volume has %s of %s", plugin.GetPluginName(), reached.String(), wanted.String())
			}
			if err == nil {
				r.expansions.Store(key, expansion{reached, node})
			}
			return err
		},
	})
	if !done {
		return claim, err
	}
	return r.expanded(ctx, claim, pv, key, target)
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
		if claim, err = r.markExpansion(ctx, claim, target, v1.PersistentVolumeClaimNodeResizePending); err == nil {
			r.Events.Event(claim, v1.EventTypeNormal, reasonNodeResize, fmt.Sprintf("the node that mounts the volume is to make its file system as large as it is, %s", done.reached.String()))
		}
	} else {
		claim, err = r.markExpansionFinished(ctx, claim, target, done.reached)
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
