package persistentvolume

import (
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/index"
	"github.com/podvol/podvol/volume/persistentvolume/internal/eventlog"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
	"github.com/podvol/podvol/volume/persistentvolume/internal/reservation"
	"github.com/podvol/podvol/volume/persistentvolume/internal/resizer"
)

// binder is the [role] of a controller that does everything.
type binder struct {
	cluster    *cluster
	writer     *writer
	status     *ownStatus
	plugins    *volume.VolumePluginMgr
	table      *reservation.Table
	waiting    *index.Waiting
	operations *operation.Executor
	events     *eventlog.Log
	unbound    *reasons
	driverOf   func(provisioner string) string
	pending    *pendingClaims

	provisioner *provisioner
	reclaimer   *reclaimer
	resizer     *resizer.Resizer
	// unusedCondition is ControllerConfig.UnusedCondition.
	unusedCondition bool
}

func (b *binder) pluginFor(provisioner string) string { return provisioner }

func (b *binder) isExternal(provisioner string) bool {
	return isForeign(b.driverOf(provisioner), pvapi.PluginsOf(b.plugins))
}

func (b *binder) begin(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) (next *v1.PersistentVolumeClaim, noted bool) {
	next = withProvisioner(claim, b.driverOf(class.Provisioner))
	return next, isProvisioning(next)
}

// tellBegun tells nothing, as in Kubernetes.
func (b *binder) tellBegun(*v1.PersistentVolumeClaim) {}

func (b *binder) complete(pv *v1.PersistentVolume) {
	metav1.SetMetaDataAnnotation(&pv.ObjectMeta, pvapi.AnnBoundByController, pvapi.AnnYes)
	pv.Finalizers = withOne(pv.Finalizers, volumeProtection)
	if pv.Spec.PersistentVolumeReclaimPolicy == v1.PersistentVolumeReclaimDelete {
		pv.Finalizers = withOne(pv.Finalizers, pvapi.DeletionFinalizer)
	}
}

// storageFinalizers has also the finalizer from before the controller was alone.
func (b *binder) storageFinalizers() []string {
	return []string{pvapi.DeletionFinalizer, besideFinalizer}
}

func (b *binder) deleterOf(pv *v1.PersistentVolume) (volume.DeletableVolumePlugin, *volume.Spec, error) {
	spec := volume.NewSpecFromPersistentVolume(pv.DeepCopy(), false)
	plugin, err := pvapi.PluginOf(b.plugins, spec)
	if err != nil {
		return nil, nil, err
	}
	deleter, err := b.plugins.FindDeletablePluginByName(plugin.GetPluginName())
	return deleter, spec, err
}
