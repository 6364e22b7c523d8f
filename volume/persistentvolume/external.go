package persistentvolume

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/eventlog"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
)

// besideFinalizer is on volumes that were made beside another controller, while
// their reclaim policy is Delete. It is the one of sig-storage-lib-external-provisioner: the
// other controller manages [pvapi.DeletionFinalizer] itself.
const besideFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// externalProvisioner is the [role] beside another controller, which binds claims, protects
// them and their volumes, and keeps the phases of both ([ControllerConfig].Provisioners).
type externalProvisioner struct {
	cluster    *cluster
	writer     *writer
	plugins    *volume.VolumePluginMgr
	waiting    *index.Waiting
	operations *operation.Executor
	events     *eventlog.Log
	// provisioners is ControllerConfig.Provisioners.
	provisioners map[string]string
	provisioner  *provisioner
	reclaimer    *reclaimer
}

func (e *externalProvisioner) pluginFor(provisioner string) string {
	return e.provisioners[provisioner]
}

func (e *externalProvisioner) isExternal(provisioner string) bool {
	return e.pluginFor(provisioner) == ""
}

func (e *externalProvisioner) begin(claim *v1.PersistentVolumeClaim, _ *storagev1.StorageClass) (next *v1.PersistentVolumeClaim, noted bool) {
	return claim.DeepCopy(), false
}

func (e *externalProvisioner) tellBegun(claim *v1.PersistentVolumeClaim) {
	e.events.Event(claim, v1.EventTypeNormal, reasonProvisioning, fmt.Sprintf("External provisioner is provisioning volume for claim %q", pvapi.NameOf(claim).String()))
}

func (e *externalProvisioner) complete(pv *v1.PersistentVolume) {
	if pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete {
		pv.Finalizers = withOne(pv.Finalizers, besideFinalizer)
	}
}

// storageFinalizers leaves the other controller's to that one.
func (e *externalProvisioner) storageFinalizers() []string { return []string{besideFinalizer} }

// deleterOf gives the plugin the volume under the plugin's own name, by which it knows what
// it has made.
func (e *externalProvisioner) deleterOf(pv *v1.PersistentVolume) (volume.DeletableVolumePlugin, *volume.Spec, error) {
	spec := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false)
	name := e.pluginFor(pv.Annotations[pvapi.AnnProvisionedBy])
	metav1.SetMetaDataAnnotation(&spec.PersistentVolume.ObjectMeta, pvapi.AnnProvisionedBy, name)
	plugin, err := e.plugins.FindDeletablePluginByName(name)
	return plugin, spec, err
}

// syncPod only notes the pod: its claims are the other controller's.
func (e *externalProvisioner) syncPod(ctx context.Context, name types.NamespacedName) error {
	_, _, err := e.cluster.pods.Get(ctx, name)
	return err
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
			return volume.Invalid("provisioners", "%s: the prefix %s is reserved; use a name such as nfs.example.com", name, pvapi.TreePrefix)
		case plugins == nil:
			return volume.Invalid("provisioners", "%s: %v", name, errNoPlugins)
		}
		if _, err := plugins.FindProvisionablePluginByName(plugin); err != nil {
			return volume.Invalid("provisioners", "%s: %v", name, err)
		}
	}
	return nil
}

// syncClaim makes the volume for a claim that is to have one from here, and
// leaves it to the binding controller to bind it.
func (e *externalProvisioner) syncClaim(ctx context.Context, name types.NamespacedName) error {
	claim, exists, err := e.cluster.claims.Get(ctx, name)
	if err != nil || !exists {
		e.waiting.Done(name)
		return err
	}
	if claim.Spec.VolumeName != "" || claim.DeletionTimestamp != nil {
		e.waiting.Done(name)
		if e.hasBegun(claim) {
			return e.provisioner.finishProvisioning(ctx, claim)
		}
		e.operations.Forget(provisionKey(claim))
		e.tellOrphanedStorage(claim)
		return nil
	}
	class, err := e.cluster.classOf(ctx, claim)
	if err != nil {
		return err
	}
	e.waiting.Add(index.Wanted{Claim: claim, Delayed: true}) // for its class to change
	if !e.hasBegun(claim) && !e.isAskedFor(claim, class) {
		return nil
	}
	pv, exists, err := e.cluster.volumes.Get(ctx, types.NamespacedName{Name: ProvisionedName(claim)})
	if err == nil && exists && pv.DeletionTimestamp == nil && checkMadeFor(pv, claim) == nil {
		return e.noteMade(ctx, claim)
	}
	if err == nil {
		_, err = e.provisioner.provision(ctx, claim, class, &index.UnboundError{Claim: name, Err: claimbinding.ErrUnbound})
	}
	return err
}

// isAskedFor reports whether the controller that binds claims has found no volume
// for one, and leaves it to this provisioner to make it.
func (e *externalProvisioner) isAskedFor(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	asked := claim.Annotations[annProvisioner]
	if asked == "" {
		asked = claim.Annotations[annProvisionerBeta]
	}
	if e.pluginFor(asked) == "" || class == nil || class.Provisioner != asked || index.DataSourceOf(claim) != "" {
		return false
	}
	return !waitsForConsumer(class) || claim.Annotations[annSelectedNode] != ""
}

// hasBegun reports whether storage may have been made here for a claim. Another
// instance's claims carry the same finalizer, and users' claims what they please.
func (e *externalProvisioner) hasBegun(claim *v1.PersistentVolumeClaim) bool {
	begun, ok := begunWith(claim)
	return ok && e.pluginFor(begun.Class.Provisioner) != ""
}

// tellOrphanedStorage is for a claim that is being deleted and whose storage no instance
// can look for, since it does not say what that was begun with.
func (e *externalProvisioner) tellOrphanedStorage(claim *v1.PersistentVolumeClaim) {
	if _, known := begunWith(claim); known || claim.DeletionTimestamp == nil || !isProvisioning(claim) {
		return
	}
	e.events.EventOnce(claim, v1.EventTypeWarning, reasonCleanupFailed, fmt.Sprintf("storage of the name %q may have been made for the claim, and its annotation %s, which said how, is gone or cannot be read: "+
		"see that there is none, then remove the finalizer %s", ProvisionedName(claim), annProvisioning, ProvisioningFinalizer), "")
}

// noteMade says in a claim that its volume says where its storage is.
func (e *externalProvisioner) noteMade(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	next := claim.DeepCopy()
	endProvisioning(next)
	_, err := e.writer.updateClaim(ctx, claim, next)
	if err == nil {
		e.operations.Forget(provisionKey(claim))
	}
	return pvapi.IgnoreMissing(err)
}

// syncVolume deletes a volume, storage first, that was made here and that
// the binding controller has found to be released.
func (e *externalProvisioner) syncVolume(ctx context.Context, name string) error {
	pv, exists, err := e.cluster.volumes.Get(ctx, types.NamespacedName{Name: name})
	if err != nil || !exists || e.pluginFor(pv.Annotations[pvapi.AnnProvisionedBy]) == "" {
		return err
	}
	if pv, err = e.holdStorage(ctx, pv); err != nil || !e.isToDelete(pv) {
		return pvapi.IgnoreMissing(err)
	}
	pv, exists, err = e.cluster.volumes.GetLive(ctx, types.NamespacedName{Name: name}) // the cache may be behind
	if err != nil || !exists || !e.isToDelete(pv) || !e.cluster.podsComplete() {
		return err
	}
	claim, err := e.cluster.claimOf(ctx, pv.Spec.ClaimRef)
	if err != nil || claim != nil && (claim.Spec.VolumeName == "" || claim.Spec.VolumeName == pv.Name) {
		return err // the binding controller is wrong, or has not finished
	}
	return e.reclaimer.deleteStorage(ctx, pv)
}

// holdStorage keeps a volume with policy Delete until its storage was deleted, as
// sig-storage-lib-external-provisioner does. A user may change the policy.
func (e *externalProvisioner) holdStorage(ctx context.Context, pv *v1.PersistentVolume) (*v1.PersistentVolume, error) {
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
	return e.writer.UpdateVolume(ctx, pv, next)
}

func (e *externalProvisioner) isToDelete(pv *v1.PersistentVolume) bool {
	ref := pv.Spec.ClaimRef
	return e.pluginFor(pv.Annotations[pvapi.AnnProvisionedBy]) != "" && ref != nil && ref.UID != "" &&
		pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete &&
		slices.Contains([]v1.PersistentVolumePhase{v1.VolumeReleased, v1.VolumeFailed}, pv.Status.Phase)
}
