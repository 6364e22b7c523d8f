// Package resizer does what the external-resizer does for CSI volumes: it makes the volumes of
// bound claims larger (KEP-284, KEP-1790) and gives them other attributes (KEP-3751), as the
// claims ask. What is to be done, and how far it is, is in the claim's status, where no restart
// loses it. Where no plugin does it, the status and an event say for whom the claim waits.
package resizer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

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
	claim, err := r.recordGrowth(ctx, claim, pv)
	if err != nil {
		return claim, fmt.Errorf("record that it asks for more: %w", err)
	}
	if claim, err = r.recordModification(ctx, claim, pv); err != nil {
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

// recordGrowth writes down that a bound claim asks for more than it has: what it
// is to get, and how far that is, in its status, where no restart loses it
// (KEP-284, KEP-1790). The volume's plugin makes it larger. For a plugin that cannot, an
// administrator enlarges the volume and its PersistentVolume. An external resizer keeps the
// status of its driver's volumes by itself.
func (r *Resizer) recordGrowth(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
	want, have := pvapi.RequestOf(claim), claim.Status.Capacity[v1.ResourceStorage]
	state := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]
	if state == "" && want.Cmp(have) <= 0 {
		r.Events.Forget(claim.UID)
		r.note(claim.UID, claim, nil)
		if _, ours := r.expanderOf(pv); ours {
			if err := r.forgetSizeBefore(ctx, pv, have); err != nil {
				return claim, err
			}
		}
		return r.clearError(ctx, claim, v1.PersistentVolumeClaimControllerResizeError)
	}
	plugin, ours := r.expanderOf(pv)
	if pv.Spec.CSI != nil && !ours {
		r.awaitExpansion(claim, pv, want)
		return claim, nil
	}
	target, known := claim.Status.AllocatedResources[v1.ResourceStorage]
	size := pv.Spec.Capacity[v1.ResourceStorage]
	switch {
	case state == v1.PersistentVolumeClaimNodeResizePending, state == v1.PersistentVolumeClaimNodeResizeInProgress:
		r.note(claim.UID, claim, nil)
		return claim, nil // the node's
	case state == v1.PersistentVolumeClaimControllerResizeInProgress && known && !(want.Cmp(target) != 0 && want.Cmp(have) > 0 && r.giveUp(claim, pv, target)): // and goes on, whatever the claim asks for by now
	case want.Cmp(have) <= 0 || state != "" && known && target.Cmp(want) == 0:
		r.note(claim.UID, claim, errors.New(cmp.Or(messageOf(claim, v1.PersistentVolumeClaimControllerResizeError), messageOf(claim, v1.PersistentVolumeClaimNodeResizeError), string(state))))
		return claim, nil // an infeasible one still is
	case size.Cmp(want) < 0:
		if refused, err := r.refuseGrowth(ctx, claim, pv, want); err != nil || refused != nil {
			return cmp.Or(refused, claim), err
		}
		fallthrough
	default:
		target = want
	}
	if ours && (size.Cmp(target) < 0 || state == v1.PersistentVolumeClaimControllerResizeInProgress) {
		claim, err := r.setGrowth(ctx, claim, target, v1.PersistentVolumeClaimControllerResizeInProgress)
		if err != nil {
			return claim, err
		}
		return r.expand(ctx, claim, pv, plugin, target)
	}
	if size.Cmp(target) < 0 {
		r.awaitExpansion(claim, pv, target)
		return r.setGrowth(ctx, claim, target, v1.PersistentVolumeClaimControllerResizeInProgress)
	}
	if r.growsOnNode(pv) {
		r.note(claim.UID, claim, nil)
		return r.setGrowth(ctx, claim, target, v1.PersistentVolumeClaimNodeResizePending)
	}
	claim, err := r.finishGrowth(ctx, claim, target, size)
	if err != nil {
		return claim, err
	}
	return r.recordGrowth(ctx, claim, pv) // it may ask for more by now
}

func (r *Resizer) awaitExpansion(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, want resource.Quantity) {
	have := pv.Spec.Capacity[v1.ResourceStorage]
	r.note(claim.UID, claim, fmt.Errorf("an external controller is to expand volume %q to %s", pv.Name, want.String()))
	details := fmt.Sprintf("it asks for %s, and volume %q has %s", want.String(), pv.Name, have.String())
	if plugin := r.pluginOf(pv); plugin != nil && isGrownOutside(plugin) {
		details += "; enlarge its storage, and then its spec.capacity: the node does the rest"
	}
	r.Events.EventOnce(claim, v1.EventTypeNormal, reasonExternalExpanding, "waiting for an external controller to expand this PVC", details)
}

// isGrownOutside reports whether a plugin grows what a node sees, once another has enlarged the
// storage, such as a disk of iSCSI on its target.
func isGrownOutside(plugin volume.VolumePlugin) bool {
	_, onNode := volume.AsNodeExpandable(plugin)
	return onNode && !volume.CanExpand(plugin)
}

// refuseGrowth tells of a claim whose volume may not, or cannot, be made larger, and returns the
// claim as it is stored then; nil: nothing is in its way.
func (r *Resizer) refuseGrowth(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, want resource.Quantity) (*v1.PersistentVolumeClaim, error) {
	class, err := r.ClassOf(ctx, claim)
	if err != nil {
		return nil, err
	}
	why := ""
	switch {
	case class == nil:
		why = fmt.Sprintf("it has no storage class that allows that (its class is %q)", pvapi.ClaimClass(claim, ""))
	case !ptr.Deref(class.AllowVolumeExpansion, false):
		why = fmt.Sprintf("StorageClass %q has not allowVolumeExpansion: true", class.Name)
	default:
		if plugin := r.pluginOf(pv); plugin != nil && !volume.CanExpand(plugin) && !isGrownOutside(plugin) {
			why = fmt.Sprintf("the plugin %s cannot expand volumes", plugin.GetPluginName())
		}
	}
	if why == "" {
		return nil, nil
	}
	refused := fmt.Errorf("it is not made larger: %s", why)
	r.note(claim.UID, claim, refused)
	stored, err := r.setError(ctx, claim, v1.PersistentVolumeClaimControllerResizeError, refused)
	r.Events.EventOnce(claim, v1.EventTypeWarning, reasonResizeFailed, refused.Error(),
		fmt.Sprintf("it asks for %s; let it ask for no more than it has, or enlarge volume %q by hand and then its spec.capacity", want.String(), pv.Name))
	return stored, err
}

// growsOnNode reports whether a node has to do its part when a volume has grown.
// True for a volume without a plugin here, and for one whose file system is smaller since before.
func (r *Resizer) growsOnNode(pv *v1.PersistentVolume) bool {
	if _, smaller := pv.Annotations[pvapi.AnnPreResizeCapacity]; smaller {
		return true
	}
	plugin := r.pluginOf(pv)
	if plugin == nil {
		return true
	}
	_, grows := volume.AsNodeExpandable(plugin)
	return grows
}

// setGrowth records how far an expansion is.
func (r *Resizer) setGrowth(ctx context.Context, claim *v1.PersistentVolumeClaim, target resource.Quantity, state v1.ClaimResourceStatus) (*v1.PersistentVolumeClaim, error) {
	if recorded := claim.Status.AllocatedResources[v1.ResourceStorage]; recorded.Cmp(target) == 0 && claim.Status.AllocatedResourceStatuses[v1.ResourceStorage] == state {
		return claim, nil
	}
	condition, other := v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimFileSystemResizePending
	message := fmt.Sprintf("waiting for the volume to be expanded to %s", target.String())
	if state == v1.PersistentVolumeClaimNodeResizePending {
		condition, other = other, condition
		message = fmt.Sprintf("waiting for the node to expand the file system to %s", target.String())
	}
	return r.Writer.ChangeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) {
		s.AllocatedResources = pvapi.SetEntry(s.AllocatedResources, v1.ResourceStorage, target)
		s.AllocatedResourceStatuses = pvapi.SetEntry(s.AllocatedResourceStatuses, v1.ResourceStorage, state)
		s.Conditions = pvapi.WithoutConditions(s.Conditions, condition, other, v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError)
		s.Conditions = append(s.Conditions, v1.PersistentVolumeClaimCondition{
			Type: condition, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(), Message: message,
		})
	})
}

// finishGrowth gives a claim the size that its volume has by now.
func (r *Resizer) finishGrowth(ctx context.Context, claim *v1.PersistentVolumeClaim, target, size resource.Quantity) (*v1.PersistentVolumeClaim, error) {
	claim, err := r.Writer.ChangeStatus(ctx, claim, func(s *v1.PersistentVolumeClaimStatus) {
		s.Capacity = pvapi.SetEntry(s.Capacity, v1.ResourceStorage, size)
		s.AllocatedResources = pvapi.SetEntry(s.AllocatedResources, v1.ResourceStorage, target)
		delete(s.AllocatedResourceStatuses, v1.ResourceStorage)
		s.Conditions = pvapi.WithoutConditions(s.Conditions, v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimFileSystemResizePending,
			v1.PersistentVolumeClaimControllerResizeError, v1.PersistentVolumeClaimNodeResizeError)
	})
	if err == nil {
		r.Events.Forget(claim.UID)
		r.note(claim.UID, claim, nil)
		r.Events.Event(claim, v1.EventTypeNormal, reasonResized, fmt.Sprintf("the volume has %s", size.String()))
	}
	return claim, err
}

// TellOfShrinking is for a bound claim that was changed to ask for less than it
// asked for and has. Nothing becomes smaller. Kubernetes' API server refuses
// that, and only lets a size be taken back that was not reached (KEP-1790).
func TellOfShrinking(prior, now *v1.PersistentVolumeClaim, events *eventlog.Log) {
	if prior == nil || prior.UID != now.UID || now.Annotations[pvapi.AnnBindCompleted] == "" {
		return
	}
	was, want, have := pvapi.RequestOf(prior), pvapi.RequestOf(now), now.Status.Capacity[v1.ResourceStorage]
	if want.Cmp(was) < 0 && want.Cmp(have) < 0 {
		events.Event(now, v1.EventTypeWarning, reasonResizeFailed,
			fmt.Sprintf("a volume cannot be made smaller: it asks for %s, and has %s; ask for %s again", want.String(), have.String(), was.String()))
	}
}
