package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
	"github.com/podvol/podvol/volume/recyclerpod"
)

var errNoPlugins = errors.New("the controller has no plugins; give it some, or use persistentVolumeReclaimPolicy: Retain")

// reclaim does what the policy of a released volume says.
func (c *Controller) reclaim(ctx context.Context, pv *v1.PersistentVolume) error {
	if !c.podsComplete() {
		return nil
	}
	policy := pv.Spec.PersistentVolumeReclaimPolicy
	if isOfDriver(pv, c.allPlugins()) && !c.isBeside() {
		policy = v1.PersistentVolumeReclaimRetain // as far as this controller goes
	}
	switch policy {
	case v1.PersistentVolumeReclaimRecycle:
		if pv.DeletionTimestamp != nil {
			return nil // nobody will want it any more
		}
		return c.recycle(ctx, pv)
	case v1.PersistentVolumeReclaimDelete:
		return c.deleteStorage(ctx, pv)
	case v1.PersistentVolumeReclaimRetain, "":
		// What failed before is not tried any more.
		_, err := c.setVolumePhase(ctx, pv, v1.VolumeReleased, "")
		return err
	}
	return c.failReclaim(ctx, pv, reasonUnknownPolicy, fmt.Errorf("the volume has an unrecognized PersistentVolumeReclaimPolicy %q, so its data is kept; make it %s, %s or %s",
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
func (c *Controller) recycle(ctx context.Context, pv *v1.PersistentVolume) error {
	state, err := c.operations.Do(c.reclaimTask(pv, func(ctx context.Context) error {
		if c.plugins == nil {
			return volume.NothingDone(errNoPlugins)
		}
		spec := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false)
		plugin, err := c.plugins.FindRecyclablePluginBySpec(spec)
		if err != nil {
			return fmt.Errorf("%w; empty it by hand, then delete the PersistentVolume and declare it anew, best with reclaim policy Retain", err)
		}
		return plugin.Recycle(ctx, pv.Name, spec, func(eventType, message string) {
			c.events.happened(pv, eventType, reasonRecyclerPod, "Recycler pod: "+message)
		})
	}))
	switch state {
	case operation.Failed:
		if errors.Is(err, volume.ErrInUse) {
			return c.awaitRelease(ctx, pv, reasonFailedRecycle, err)
		}
		return c.failReclaim(ctx, pv, reasonFailedRecycle, fmt.Errorf("recycling failed: %w", err))
	case operation.Running:
		c.events.isSlow(pv, err)
		return nil
	}
	if err := c.unbind(ctx, pv); err != nil {
		return err
	}
	c.events.happened(pv, v1.EventTypeNormal, reasonRecycled, "Volume recycled")
	return nil
}

// reclaimTask keeps the volume from everybody while f runs, even if somebody
// takes its claimRef away meanwhile.
func (c *Controller) reclaimTask(pv *v1.PersistentVolume, f func(context.Context) error) operation.Task {
	return operation.Task{Key: releaseKey(pv), Volume: pv.Name, Class: pvapi.VolumeClass(pv), About: pvapi.VolumeRef(pv.Name), Inherited: true, Do: func(ctx context.Context) error {
		c.index.SetBusy(pv.Name, true)
		defer func() {
			c.index.SetBusy(pv.Name, false)
			for _, claim := range c.index.ClaimsOf(pv.Name, types.NamespacedName{}) {
				c.queue.Add(pvapi.ClaimRef(claim))
			}
		}()
		return f(ctx)
	}}
}

// deleteStorage deletes the storage, then the volume. What others have
// provisioned they also delete.
func (c *Controller) deleteStorage(ctx context.Context, pv *v1.PersistentVolume) error {
	if !c.isBeside() && !DeletesStorage(pv, c.allPlugins()) {
		return nil
	}
	if pv.DeletionTimestamp != nil && !c.holdsStorage(pv) {
		return nil // it can go at any moment, so its storage has gone before, or is to stay
	}
	state, err := c.operations.Do(c.reclaimTask(pv, func(ctx context.Context) error {
		if c.plugins == nil {
			return volume.NothingDone(errNoPlugins)
		}
		plugin, spec, err := c.deleterOf(pv)
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
		if !volume.FoundStorage(deleter) {
			c.events.happened(pv, v1.EventTypeNormal, ReasonStorageMissing, "The volume's storage was not there, so nothing was deleted")
		}
		return nil
	}))
	switch state {
	case operation.Failed:
		if errors.Is(err, volume.ErrInUse) {
			return c.awaitRelease(ctx, pv, reasonDelete, err)
		}
		return c.failReclaim(ctx, pv, reasonFailedDelete, err)
	case operation.Running:
		c.events.isSlow(pv, err)
		return nil
	}
	next := pv.DeepCopy()
	for _, held := range c.storageFinalizers() {
		next.Finalizers = pvapi.Without(next.Finalizers, held)
	}
	if pv, err = c.updateVolume(ctx, pv, next); err != nil {
		return pvapi.IgnoreMissing(err)
	}
	if pv.DeletionTimestamp != nil {
		return nil
	}
	if err := c.objects.Delete(ctx, pvapi.VolumeRef(pv.Name), objects.Preconditions{UID: pv.UID, ResourceVersion: pv.ResourceVersion}); err != nil {
		return pvapi.IgnoreMissing(err)
	}
	_, _, err = c.volumes.getLive(ctx, types.NamespacedName{Name: pv.Name}) // to let it go, whether or not the cache has heard of it
	return err
}

// holdsStorage reports whether a volume stays until its storage was deleted here.
func (c *Controller) holdsStorage(pv *v1.PersistentVolume) bool {
	return slices.ContainsFunc(c.storageFinalizers(), func(held string) bool { return slices.Contains(pv.Finalizers, held) })
}

// storageFinalizers are those that this controller removes once the storage is gone:
// beside another one not that one's, alone also those from before it was alone.
func (c *Controller) storageFinalizers() []string {
	if c.isBeside() {
		return []string{besideFinalizer}
	}
	return []string{pvapi.DeletionFinalizer, besideFinalizer}
}

// deleterOf is pluginOf for who is to delete the storage, and what it is given: it
// knows what it has made by its own name.
func (c *Controller) deleterOf(pv *v1.PersistentVolume) (volume.DeletableVolumePlugin, *volume.Spec, error) {
	spec := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false)
	if c.isBeside() {
		name := c.pluginFor(pv.Annotations[pvapi.AnnProvisionedBy])
		metav1.SetMetaDataAnnotation(&spec.PersistentVolume.ObjectMeta, pvapi.AnnProvisionedBy, name)
		plugin, err := c.plugins.FindDeletablePluginByName(name)
		return plugin, spec, err
	}
	plugin, err := pvapi.PluginOf(c.plugins, spec)
	if err != nil {
		return nil, nil, err
	}
	deleter, err := c.plugins.FindDeletablePluginByName(plugin.GetPluginName())
	return deleter, spec, err
}

// failReclaim shows why a volume could not be reclaimed; it is tried again.
func (c *Controller) failReclaim(ctx context.Context, pv *v1.PersistentVolume, reason string, why error) error {
	c.events.is(pv, v1.EventTypeWarning, reason, why.Error(), "")
	_, err := c.setVolumePhase(ctx, pv, v1.VolumeFailed, why.Error())
	return err
}

// awaitRelease says who still uses a volume that is to be reclaimed. That is no
// failure, so that it stays Released, as in Kubernetes.
func (c *Controller) awaitRelease(ctx context.Context, pv *v1.PersistentVolume, reason string, why error) error {
	c.events.is(pv, v1.EventTypeNormal, reason, why.Error(), "")
	_, err := c.setVolumePhase(ctx, pv, v1.VolumeReleased, why.Error())
	return err
}
