package persistentvolume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/internal/eventlog"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
	"github.com/podvol/podvol/volume/reclaim"
	"github.com/podvol/podvol/volume/recyclerpod"
)

// reclaimer does what becomes of volumes whose claims have left them, and protects them
// until then.
type reclaimer struct {
	duties     deleterDuties
	cluster    *cluster
	writer     *writer
	status     statusKeeper
	plugins    *volume.VolumePluginMgr
	operations *operation.Executor
	events     *eventlog.Log
	driverOf   func(provisioner string) string
}

// release is for a volume whose claim has gone, or has another volume.
func (r *reclaimer) release(ctx context.Context, pv *v1.PersistentVolume) error {
	if phase := pv.Status.Phase; phase != v1.VolumeReleased && phase != v1.VolumeFailed {
		var err error
		if pv, err = r.status.setVolumePhase(ctx, pv, v1.VolumeReleased, ""); err != nil {
			return err
		}
	}
	return r.reclaim(ctx, pv)
}

// unbind makes a volume available again in which no claim has data: it was
// emptied, or its claim has had another one from the start. What the controller
// chose is free then, what the user chose waits for a claim of that name.
func (r *reclaimer) unbind(ctx context.Context, pv *v1.PersistentVolume) error {
	next := pv.DeepCopy()
	if _, ours := next.Annotations[pvapi.AnnBoundByController]; ours {
		next.Spec.ClaimRef = nil
		delete(next.Annotations, pvapi.AnnBoundByController)
	} else {
		next.Spec.ClaimRef.UID = ""
		next.Spec.ClaimRef.ResourceVersion = ""
	}
	pv, err := r.writer.UpdateVolume(ctx, pv, next)
	if err != nil {
		return err
	}
	_, err = r.status.setVolumePhase(ctx, pv, v1.VolumeAvailable, "")
	return err
}

// reclaim does what the policy of a released volume says.
func (r *reclaimer) reclaim(ctx context.Context, pv *v1.PersistentVolume) error {
	if !r.cluster.podsComplete() {
		return nil
	}
	policy := pv.Spec.PersistentVolumeReclaimPolicy
	if pvapi.IsOfDriver(pv, pvapi.PluginsOf(r.plugins)) {
		policy = v1.PersistentVolumeReclaimRetain // as far as this controller goes
	}
	switch policy {
	case v1.PersistentVolumeReclaimRecycle:
		if pv.DeletionTimestamp != nil {
			return nil // no claim will want it any more
		}
		return r.recycle(ctx, pv)
	case v1.PersistentVolumeReclaimDelete:
		if !DeletesStorage(pv, pvapi.PluginsOf(r.plugins)) {
			return nil // the process that provisioned it deletes it
		}
		return r.deleteStorage(ctx, pv)
	case v1.PersistentVolumeReclaimRetain, "":
		// What failed before is not tried any more.
		_, err := r.status.setVolumePhase(ctx, pv, v1.VolumeReleased, "")
		return err
	}
	return r.failReclaim(ctx, pv, reasonUnknownPolicy, fmt.Errorf("the volume has an unrecognized PersistentVolumeReclaimPolicy %q, so its data is kept; make it %s, %s or %s",
		pv.Spec.PersistentVolumeReclaimPolicy, v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle))
}

// releaseKey names the work on one release of a volume: a volume that was emptied
// is not one that was deleted.
func releaseKey(pv *v1.PersistentVolume) string {
	return "reclaim " + string(pv.Spec.PersistentVolumeReclaimPolicy) + " " + recyclerpod.ReleaseID(pv)
}

// isSameRelease reports whether two versions of a volume have the same releaseKey,
// or the earlier none.
func isSameRelease(prior, now *v1.PersistentVolume) bool {
	was, is := prior.Spec.ClaimRef, now.Spec.ClaimRef
	return was == nil || was.UID == "" || prior.UID == now.UID && is != nil && is.UID == was.UID &&
		prior.Spec.PersistentVolumeReclaimPolicy == now.Spec.PersistentVolumeReclaimPolicy
}

// recycle empties the volume and makes it available again.
func (r *reclaimer) recycle(ctx context.Context, pv *v1.PersistentVolume) error {
	state, err := r.operations.Do(reclaimTask(pv, func(ctx context.Context) error {
		if r.plugins == nil {
			return volume.NothingDone(errNoPlugins)
		}
		spec := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false)
		plugin, err := r.plugins.FindRecyclablePluginBySpec(spec)
		if err != nil {
			return fmt.Errorf("%w; empty it by hand, then delete the PersistentVolume and declare it anew, best with reclaim policy Retain", err)
		}
		return plugin.Recycle(ctx, pv.Name, spec, func(eventType, message string) {
			r.events.Event(pv, eventType, reasonRecyclerPod, "Recycler pod: "+message)
		})
	}))
	switch state {
	case operation.Failed:
		if errors.Is(err, volume.ErrInUse) {
			return r.awaitRelease(ctx, pv, reasonFailedRecycle, err)
		}
		return r.failReclaim(ctx, pv, reasonFailedRecycle, fmt.Errorf("recycling failed: %w", err))
	case operation.Running:
		r.events.PluginSlow(pv, err)
		return nil
	}
	if err := r.unbind(ctx, pv); err != nil {
		return err
	}
	r.events.Event(pv, v1.EventTypeNormal, reasonRecycled, "Volume recycled")
	return nil
}

// reclaimTask keeps the volume from all claims until f has ended, even if another
// client removes its claimRef meanwhile.
func reclaimTask(pv *v1.PersistentVolume, f func(context.Context) error) operation.Task {
	return operation.Task{Key: releaseKey(pv), Volume: pv.Name, Removes: true, Class: pvapi.VolumeClass(pv), About: pvapi.VolumeRef(pv.Name), Inherited: true, Do: f}
}

// deleteStorage deletes the storage, then the volume.
func (r *reclaimer) deleteStorage(ctx context.Context, pv *v1.PersistentVolume) error {
	if pv.DeletionTimestamp != nil && !holdsStorage(pv, r.duties.storageFinalizers()) {
		return nil // it can go at any moment, so its storage has gone before, or is to stay
	}
	state, err := r.operations.Do(reclaimTask(pv, func(ctx context.Context) error {
		if r.plugins == nil {
			return volume.NothingDone(errNoPlugins)
		}
		plugin, spec, err := r.duties.deleterOf(pv)
		if err != nil {
			return err
		}
		deleter, err := plugin.NewDeleter(spec)
		if err != nil {
			return err
		}
		if err := deleter.Delete(ctx); err != nil {
			return err
		}
		if !reclaim.FoundStorage(deleter) {
			r.events.Event(pv, v1.EventTypeNormal, ReasonStorageMissing, "The volume's storage was not there, so nothing was deleted")
		}
		return nil
	}))
	switch state {
	case operation.Failed:
		if errors.Is(err, volume.ErrInUse) {
			return r.awaitRelease(ctx, pv, reasonDelete, err)
		}
		return r.failReclaim(ctx, pv, reasonFailedDelete, err)
	case operation.Running:
		r.events.PluginSlow(pv, err)
		return nil
	}
	next := pv.DeepCopy()
	for _, held := range r.duties.storageFinalizers() {
		next.Finalizers = pvapi.Without(next.Finalizers, held)
	}
	if pv, err = r.writer.UpdateVolume(ctx, pv, next); err != nil {
		return pvapi.IgnoreMissing(err)
	}
	if pv.DeletionTimestamp != nil {
		return nil
	}
	if err := r.cluster.objects.Delete(ctx, pvapi.VolumeRef(pv.Name), objects.Preconditions{UID: pv.UID, ResourceVersion: pv.ResourceVersion}); err != nil {
		return pvapi.IgnoreMissing(err)
	}
	_, _, err = r.cluster.volumes.GetLive(ctx, types.NamespacedName{Name: pv.Name}) // to let it go, whether or not the cache has heard of it
	return err
}

// failReclaim shows why a volume could not be reclaimed; it is tried again.
func (r *reclaimer) failReclaim(ctx context.Context, pv *v1.PersistentVolume, reason string, why error) error {
	r.events.EventOnce(pv, v1.EventTypeWarning, reason, why.Error(), "")
	_, err := r.status.setVolumePhase(ctx, pv, v1.VolumeFailed, why.Error())
	return err
}

// awaitRelease tells the users of a volume that is to be reclaimed. That is no
// failure, so that it stays Released, as in Kubernetes.
func (r *reclaimer) awaitRelease(ctx context.Context, pv *v1.PersistentVolume, reason string, why error) error {
	r.events.EventOnce(pv, v1.EventTypeNormal, reason, why.Error(), "")
	_, err := r.status.setVolumePhase(ctx, pv, v1.VolumeReleased, why.Error())
	return err
}
