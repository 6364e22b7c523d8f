package resizer

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/persistentvolume/internal/eventlog"
)

// syncExpansion does the next step of an expansion, by what the claim's status says and its owner
// asks for (KEP-284, KEP-1790):
//
//	status                       asks for           next
//	none                         what it has        nothing
//	none                         more               ControllerResizeInProgress; or what follows that, if the volume has the size
//	ControllerResizeInProgress   the same           the plugin's call goes on; then NodeResizePending, or none where nodes have no part
//	ControllerResizeInProgress   something else     the call goes on; as with none if it has failed for good
//	NodeResizePending            whatever           the node's part goes on
//	NodeResizeInProgress         whatever           the node's part goes on
//	…Infeasible                  the same, or less  nothing
//	…Infeasible                  something else     as with none
//
// For a plugin that cannot expand, an administrator enlarges the volume and its PersistentVolume.
// An external resizer keeps the status of its driver's volumes by itself.
func (r *Resizer) syncExpansion(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) (*v1.PersistentVolumeClaim, error) {
	want, have, size := pvapi.RequestOf(claim), claim.Status.Capacity[v1.ResourceStorage], pv.Spec.Capacity[v1.ResourceStorage]
	status := claim.Status.AllocatedResourceStatuses[v1.ResourceStorage]
	allocated, known := claim.Status.AllocatedResources[v1.ResourceStorage]
	inProgress := status == v1.PersistentVolumeClaimControllerResizeInProgress
	plugin, ours := r.expanderOf(pv)
	larger, same := want.Cmp(have) > 0, known && want.Cmp(allocated) == 0
	target, goesOn := want, inProgress && known
	if goesOn && ours && larger && !same {
		goesOn = !r.abandon(expandKey(claim, allocated))
	}
	switch {
	case status == "" && !larger:
		return r.settleExpansion(ctx, claim, pv, ours)
	case pv.Spec.CSI != nil && !ours:
		r.awaitExternalResizer(claim, pv, want)
		return claim, nil
	case status == v1.PersistentVolumeClaimNodeResizePending, status == v1.PersistentVolumeClaimNodeResizeInProgress:
		r.note(claim.UID, claim, nil)
		return claim, nil
	case goesOn:
		target = allocated
	case !larger, same && status != "":
		r.note(claim.UID, claim, errors.New(cmp.Or(messageOf(claim, v1.PersistentVolumeClaimControllerResizeError), messageOf(claim, v1.PersistentVolumeClaimNodeResizeError), string(status))))
		return claim, nil
	case size.Cmp(want) < 0:
		if refused, err := r.refuseExpansion(ctx, claim, pv, want); err != nil || refused != nil {
			return cmp.Or(refused, claim), err
		}
	}
	switch smaller := size.Cmp(target) < 0; {
	case ours && (smaller || inProgress):
		return r.expand(ctx, claim, pv, plugin, target)
	case smaller:
		r.awaitExternalResizer(claim, pv, target)
		return r.markExpansion(ctx, claim, target, v1.PersistentVolumeClaimControllerResizeInProgress)
	case r.needsNodeExpansion(pv):
		r.note(claim.UID, claim, nil)
		return r.markExpansion(ctx, claim, target, v1.PersistentVolumeClaimNodeResizePending)
	}
	claim, err := r.markExpansionFinished(ctx, claim, target, size)
	if err != nil {
		return claim, err
	}
	return r.syncExpansion(ctx, claim, pv) // it may ask for more by now
}

// settleExpansion is for a claim that has what it asks for.
func (r *Resizer) settleExpansion(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, ours bool) (*v1.PersistentVolumeClaim, error) {
	r.Events.Forget(claim.UID)
	r.note(claim.UID, claim, nil)
	if ours {
		if err := r.forgetSizeBefore(ctx, pv, claim.Status.Capacity[v1.ResourceStorage]); err != nil {
			return claim, err
		}
	}
	return r.clearError(ctx, claim, v1.PersistentVolumeClaimControllerResizeError)
}

func (r *Resizer) awaitExternalResizer(claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, want resource.Quantity) {
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

// refuseExpansion tells of a claim whose volume may not, or cannot, be made larger, and returns the
// claim as it is stored then; nil: nothing is in its way.
func (r *Resizer) refuseExpansion(ctx context.Context, claim *v1.PersistentVolumeClaim, pv *v1.PersistentVolume, want resource.Quantity) (*v1.PersistentVolumeClaim, error) {
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

// needsNodeExpansion reports whether a node has to do its part when a volume has grown.
// True for a volume without a plugin here, and for one whose file system is smaller since before.
func (r *Resizer) needsNodeExpansion(pv *v1.PersistentVolume) bool {
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

// expanderOf returns the plugin that makes a volume larger, if that is not done elsewhere.
func (r *Resizer) expanderOf(pv *v1.PersistentVolume) (volume.VolumePlugin, bool) {
	if pvapi.IsOfDriver(pv, pvapi.PluginsOf(r.Plugins)) {
		return nil, false
	}
	plugin := r.pluginOf(pv)
	return plugin, plugin != nil && volume.CanExpand(plugin)
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
