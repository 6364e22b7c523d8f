package persistentvolume

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// besideFinalizer is on volumes that were made beside another controller, while
// their reclaim policy is Delete. It is the one of sig-storage-lib-external-provisioner: the
// other controller manages [pvapi.DeletionFinalizer] itself.
const besideFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// isBeside reports whether somebody else binds claims, protects them and their
// volumes, and keeps the phases of both ([ControllerConfig].Provisioners).
func (c *Controller) isBeside() bool { return c.provisioners != nil }

// pluginFor returns the name of the plugin that is meant by a provisioner's; beside
// another controller it is "" for one of somebody else.
func (c *Controller) pluginFor(provisioner string) string {
	if c.isBeside() {
		return c.provisioners[provisioner]
	}
	return provisioner
}

// Validate returns a *[volume.InvalidSpecError] if Provisioners cannot be. Plugins
// must be initialized. [Controller.Run] returns the same.
func (c ControllerConfig) Validate() error { return checkProvisioners(c.Provisioners, c.Plugins) }

func checkProvisioners(provisioners map[string]string, plugins *volume.VolumePluginMgr) error {
	for name, plugin := range provisioners {
		switch {
		case name == "":
			return volume.Invalid("provisioners", "the plugin %s has no provisioner's name", plugin)
		case strings.HasPrefix(name, pvapi.TreePrefix):
			return volume.Invalid("provisioners", "%s: names that begin with %s are those of the controller that binds claims; call it otherwise, as in nfs.example.com", name, pvapi.TreePrefix)
		case plugins == nil:
			return volume.Invalid("provisioners", "%s: %v", name, errNoPlugins)
		}
		if _, err := plugins.FindProvisionablePluginByName(plugin); err != nil {
			return volume.Invalid("provisioners", "%s: %v", name, err)
		}
	}
	return nil
}

// syncClaimBeside makes the volume for a claim that is to have one from here, and
// leaves it to somebody else to bind it.
func (c *Controller) syncClaimBeside(ctx context.Context, name types.NamespacedName) error {
	claim, exists, err := c.claims.get(ctx, name)
	if err != nil || !exists {
		c.waiting.Done(name)
		return err
	}
	if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
		c.waiting.Done(name)
		if c.hasBegun(claim) {
			return c.finishProvisioning(ctx, claim)
		}
		c.operations.Forget(provisionKey(claim))
		c.tellNobodysStorage(claim)
		return nil
	}
	class, err := c.classOf(ctx, claim)
	if err != nil {
		return err
	}
	c.waiting.Add(index.Wanted{Claim: claim, Delayed: true}) // for its class to change
	if !c.hasBegun(claim) && !c.isAskedFor(claim, class) {
		return nil
	}
	pv, exists, err := c.volumes.get(ctx, types.NamespacedName{Name: ProvisionedName(claim)})
	if err == nil && exists && pv.DeletionTimestamp == nil && checkMadeFor(pv, claim) == nil {
		return c.noteMade(ctx, claim)
	}
	if err == nil {
		_, err = c.provision(ctx, claim, class, &index.UnboundError{Claim: name, Err: claimbinding.ErrUnbound})
	}
	return err
}

// isAskedFor reports whether the controller that binds claims has found no volume
// for one, and leaves it to this provisioner to make it.
func (c *Controller) isAskedFor(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	asked := claim.Annotations[annProvisioner]
	if asked == "" {
		asked = claim.Annotations[annProvisionerBeta]
	}
	if c.pluginFor(asked) == "" || class == nil || class.Provisioner != asked || index.DataSourceOf(claim) != "" {
		return false
	}
	return !waitsForConsumer(class) || claim.Annotations[annSelectedNode] != ""
}

// hasBegun reports whether storage may have been made here for a claim. Another
// instance's claims carry the same finalizer, and users' claims what they please.
func (c *Controller) hasBegun(claim *v1.PersistentVolumeClaim) bool {
	begun, ok := begunWith(claim)
	return ok && c.pluginFor(begun.Class.Provisioner) != ""
}

// tellNobodysStorage is for a claim that is being deleted and whose storage no instance
// can look for, since it does not say what that was begun with.
func (c *Controller) tellNobodysStorage(claim *v1.PersistentVolumeClaim) {
	if _, known := begunWith(claim); known || claim.DeletionTimestamp == nil || !isProvisioning(claim) {
		return
	}
	c.events.is(claim, v1.EventTypeWarning, reasonCleanupFailed, fmt.Sprintf("storage of the name %q may have been made for the claim, and its annotation %s, which said how, is gone or cannot be read: "+
		"see that there is none, then remove the finalizer %s", ProvisionedName(claim), annProvisioning, ProvisioningFinalizer), "")
}

// noteMade says in a claim that its volume says where its storage is.
func (c *Controller) noteMade(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	next := claim.DeepCopy()
	endProvisioning(next)
	_, err := c.updateClaim(ctx, claim, next)
	if err == nil {
		c.operations.Forget(provisionKey(claim))
	}
	return pvapi.IgnoreMissing(err)
}

// syncVolumeBeside deletes a volume, storage first, that was made here and that
// somebody else has found to be released.
func (c *Controller) syncVolumeBeside(ctx context.Context, name string) error {
	pv, exists, err := c.volumes.get(ctx, types.NamespacedName{Name: name})
	if err != nil || !exists || c.pluginFor(pv.Annotations[pvapi.AnnProvisionedBy]) == "" {
		return err
	}
	if pv, err = c.holdStorage(ctx, pv); err != nil || !c.isToDelete(pv) {
		return pvapi.IgnoreMissing(err)
	}
	pv, exists, err = c.volumes.getLive(ctx, types.NamespacedName{Name: name}) // the cache may be behind
	if err != nil || !exists || !c.isToDelete(pv) || !c.podsComplete() {
		return err
	}
	claim, err := c.claimOf(ctx, pv.Spec.ClaimRef)
	if err != nil || claim != nil && (claim.Spec.VolumeName == "" || claim.Spec.VolumeName == pv.Name) {
		return err // whoever binds claims is wrong, or has not finished
	}
	return c.deleteStorage(ctx, pv)
}

// holdStorage has a volume stay until its storage was deleted while that is its
// policy, which anybody may change, as sig-storage-lib-external-provisioner does.
func (c *Controller) holdStorage(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	next := pv.DeepCopy()
	switch {
	case pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete:
		next.Finalizers = pvapi.Without(next.Finalizers, besideFinalizer)
	case pv.DeletionTimestamp == nil && pv.Status.Phase == v1.VolumeBound:
		next.Finalizers = withOne(next.Finalizers, besideFinalizer)
	}
	if len(next.Finalizers) == len(pv.Finalizers) {
		return pv, nil
	}
	return c.updateVolume(ctx, pv, next)
}

func (c *Controller) isToDelete(pv *v1.PersistentVolume) bool {
	ref := pv.Spec.ClaimRef
	return c.pluginFor(pv.Annotations[pvapi.AnnProvisionedBy]) != "" && ref != nil && ref.UID != "" &&
		pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete &&
		slices.Contains([]v1.PersistentVolumePhase{v1.VolumeReleased, v1.VolumeFailed}, pv.Status.Phase)
}
