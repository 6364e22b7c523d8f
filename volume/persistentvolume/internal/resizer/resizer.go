// Package resizer does what the external-resizer does for CSI volumes: it makes the volumes of
// bound claims larger (KEP-284, KEP-1790) and gives them other attributes (KEP-3751), as the
// claims ask. What is to be done, and how far it is, is in the claim's status, where no restart
// loses it. Where no plugin does it, the status and an event say for whom the claim waits.
package resizer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/internal/eventlog"
	"github.com/podvol/podvol/volume/persistentvolume/internal/operation"
)

// Reasons of events, as in Kubernetes' controllers.
const (
	reasonExternalExpanding = "ExternalExpanding"
	reasonExternalModifying = "ExternalModifying" // podvol's own
	reasonModified          = "VolumeModifySuccessful"
	reasonModifyFailed      = "VolumeModifyFailed"
	reasonResizeFailed      = "VolumeResizeFailed"
	reasonNodeResize        = "FileSystemResizeRequired"
	reasonResized           = "VolumeResizeSuccessful"
)

// Resizer makes volumes larger and gives them other attributes. The fields must be set before its
// first call. Calls for one claim must follow one another.
type Resizer struct {
	Objects objects.Source // has the VolumeAttributesClasses
	// ClassOf returns the claim's class, nil where there is none of that name.
	ClassOf    func(context.Context, *v1.PersistentVolumeClaim) (*storagev1.StorageClass, error)
	Writer     Writer
	Plugins    *volume.VolumePluginMgr // nil: none
	Operations *operation.Executor
	Events     *eventlog.Log
	// Changed is called after what [Resizer.Missing] says has changed; nil: it is not.
	Changed func(types.NamespacedName)

	expansions sync.Map // of those that are done and not written down, by their keys
	missing    sync.Map // why claims do not get what they ask for, by names of states
}

// Writer writes claims and volumes, and returns the stored version; on an error the object as it
// was.
type Writer interface {
	UpdateVolume(ctx context.Context, pv, next *v1.PersistentVolume) (*v1.PersistentVolume, error)
	// ChangeStatus writes what f makes of a copy of a claim's status.
	ChangeStatus(ctx context.Context, claim *v1.PersistentVolumeClaim, f func(*v1.PersistentVolumeClaimStatus)) (*v1.PersistentVolumeClaim, error)
}

// Sync does the next steps for a bound claim and its volume, and returns the claim as it is stored
// then. It does not wait for a plugin: the claim is enqueued again when that has answered.
func (r *Resizer) Sync(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
	claim, err := r.syncExpansion(ctx, claim, pv)
	if err != nil {
		return claim, fmt.Errorf("record that it asks for more: %w", err)
	}
	if claim, err = r.syncModification(ctx, claim, pv); err != nil {
		return claim, fmt.Errorf("record that it asks for other attributes: %w", err)
	}
	return claim, nil
}

// Forget forgets what was done, and told, of a claim that is gone. A nil Resizer has nothing.
func (r *Resizer) Forget(claim *v1.PersistentVolumeClaim) {
	if r == nil {
		return
	}
	r.missing.Delete(claim.UID)
	r.missing.Delete(attributesOf(claim))
	r.Events.Forget(attributesOf(claim))
	r.Operations.Forget(expandKey(claim, claim.Status.AllocatedResources[v1.ResourceStorage]))
	if m := claim.Status.ModifyVolumeStatus; m != nil {
		r.Operations.Forget(modifyKey(claim, m.TargetVolumeAttributesClassName))
	}
}

// pluginOf returns the plugin that mounts a volume; nil: none does here.
func (r *Resizer) pluginOf(pv *v1.PersistentVolume) volume.VolumePlugin {
	if r.Plugins == nil {
		return nil
	}
	plugin, err := r.Plugins.FindPluginBySpec(volume.NewSpecFromPersistentVolume(pv, false))
	if err != nil {
		return nil
	}
	return plugin
}

// call is what a plugin is asked to do for a claim, whose status says that since before. Until the
// status says what came of it, another process asks the plugin again, which is idempotent.
type call struct {
	key string
	do  func(context.Context) error

	// How a failure is told, unless it is told already. What differs between attempts is in details.
	told                     bool
	state                    types.UID // of [Resizer.note] and of events
	reason, failure, details string
	condition                v1.PersistentVolumeClaimConditionType

	infeasible     error // what a plugin's error matches that need not be asked again
	markInfeasible func(why error) (*v1.PersistentVolumeClaim, error)
}

// ask has a plugin do a call, beside this goroutine, and reports whether that is done. Otherwise
// it writes down why not, if that is known, and returns the claim as it is stored then. A call
// that has turned out to be infeasible is not repeated.
func (r *Resizer) ask(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, c call) (bool, *v1.PersistentVolumeClaim, error) {
	state, err := r.Operations.Do(operation.Task{Key: c.key, Volume: pv.Name, Class: pvapi.ClaimClass(claim, ""), About: pvapi.ClaimRef(pvapi.NameOf(claim)), Inherited: true, Do: c.do})
	switch {
	case state == operation.Running:
		r.Events.PluginSlow(claim, err)
		return false, claim, nil
	case state == operation.Done || err == nil || c.told:
		return state == operation.Done, claim, nil
	}
	r.note(c.state, claim, fmt.Errorf("%s: %w", c.failure, err))
	r.Events.EventOnceFor(c.state, claim, v1.EventTypeWarning, c.reason, c.failure, c.details+err.Error())
	if !errors.Is(err, c.infeasible) {
		claim, err = r.setError(ctx, claim, c.condition, err)
		return false, claim, err
	}
	claim, err = c.markInfeasible(err)
	if err == nil {
		r.Operations.Forget(c.key)
	}
	return false, claim, err
}

// abandon reports whether a call is none any more: all attempts failed, and the last one is known
// to have ended. They are forgotten.
func (r *Resizer) abandon(key string) bool {
	now := r.Operations.Status(key)
	if now.State != operation.Failed || now.Failure == nil || volume.IsUncertain(now.Failure) {
		return false
	}
	r.Operations.Forget(key)
	return true
}
