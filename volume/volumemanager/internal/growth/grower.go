package growth

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager/internal/podevents"
)

// Grower does the node's part when a volume has grown. That is a part of a set-up, which a
// change of the claim or of the PersistentVolume begins, also of a mounted volume.
type Grower struct {
	Events podevents.Teller
	// Resizes is told that it begins, and how it ended; nil: nobody is.
	Resizes volume.NodeResizeReporter
	Log     *slog.Logger
}

// Entry is what the node knows of a volume, and keeps.
type Entry interface {
	// Lock keeps the other volumes of the device from working on it until unlock is called.
	Lock(ctx context.Context) (unlock func(), err error)
	// Siblings are the records, and the refusals, of the node's volumes of the same claim,
	// the volume's own among them.
	Siblings() ([]*mountrecord.Record, []Refusal)
	// Note writes down which size the node has reached.
	Note(size resource.Quantity) error
	// Refuse keeps why the volume does not grow, as long as the volume is there.
	Refuse(Refusal)
}

// Volume is one pod's volume during one set-up.
type Volume struct {
	Entry
	Plugin volume.NodeExpandableVolumePlugin
	Spec   *volume.Spec
	Pod    *v1.Pod
	Record *mountrecord.Record
	Claim  *v1.PersistentVolumeClaim

	done    bool
	mounted bool
	late    error
}

// IsDone reports whether nothing is left to be done in this set-up. A nil Volume has nothing.
func (v *Volume) IsDone() bool { return v == nil || v.done }

// Late is why the claim could not be told; nil: it was, or there is nothing to tell.
func (v *Volume) Late() error {
	if v == nil {
		return nil
	}
	return v.late
}

// Reached is the size that the node has reached; nil: not known.
func (v *Volume) Reached() *resource.Quantity {
	records, _ := v.Siblings()
	return Reached(records, v.Claim)
}

// refusal is why the volume does not get a size on this node; its zero value: it may.
func (v *Volume) refusal(size resource.Quantity) (found Refusal) {
	_, all := v.Siblings()
	for _, r := range all {
		if r.Forbids(size) && !found.Reported {
			found = r
		}
	}
	return found
}

// Grow does the node's part if there is one, at the places of the options. It does it under
// the device's lock: one of the pods' volumes does it, and the others find it done. The volume
// is not done if the plugin wants to be called again once it is mounted.
//
// What the plugin cannot do is no error; see [IsRefusal].
func (g *Grower) Grow(ctx context.Context, v *Volume, o volume.NodeResizeOptions) error {
	unlock, err := v.Lock(ctx)
	if err != nil {
		return v.failed(volume.NothingDone(err))
	}
	defer unlock()
	reached := v.Reached()
	wish := Of(v.Spec.PersistentVolume, v.Claim, reached)
	refused := v.refusal(wish.Size)
	if refused.IsOver(v.Claim) {
		refused = Refusal{}
	}
	switch {
	case !wish.Call && !wish.Report:
	case refused.Err != nil:
		g.report(ctx, v, refused)
	case !wish.Call:
		g.report(ctx, v, Refusal{Size: wish.Size})
	default:
		return g.call(ctx, v, wish, reached, o)
	}
	v.done = true
	return nil
}

// GrowMounted is [Grower.Grow] for a volume that is mounted: the plugin has to do it now. Its
// errors are uncertain, whatever the plugin says: the set-up has mounted something.
func (g *Grower) GrowMounted(ctx context.Context, v *Volume, o volume.NodeResizeOptions) error {
	v.mounted = true
	if err := g.Grow(ctx, v, o); err != nil || v.done {
		return err
	}
	return v.failed(errors.New("the plugin has not grown the mounted volume, and gives no reason"))
}

// call has the plugin grow the volume, and notes the outcome before it is told.
func (g *Grower) call(ctx context.Context, v *Volume, wish Wish, reached *resource.Quantity, o volume.NodeResizeOptions) error {
	o.VolumeSpec, o.NewSize = v.Spec, wish.Size
	if reached != nil {
		o.OldSize = *reached
	}
	done, err := true, ErrReadOnly
	if !v.Spec.ReadOnly {
		g.reportStarted(ctx, v, wish)
		done, err = v.Plugin.NodeExpand(ctx, o)
		err = v.refusedForGood(wish, err)
	}
	switch {
	case err != nil && !IsRefusal(err):
		g.reportFailure(ctx, v, wish, err)
		return v.failed(err)
	case err == nil && !done:
		return nil
	case err == nil:
		if err := v.Note(wish.Size); err != nil {
			return v.failed(err)
		}
		g.Events.Grown(v.Pod, v.Record, wish.Size)
	default:
		g.Events.NotGrown(v.Pod, v.Record, wish.Size, err)
	}
	v.done = true
	outcome := Refusal{Size: wish.Size, Err: err, Reported: !wish.Report || errors.Is(err, ErrReadOnly)}
	v.Refuse(outcome)
	g.report(ctx, v, outcome)
	return nil
}

// reportStarted tells the claim that the volume is about to grow. A claim that cannot be told
// grows all the same.
func (g *Grower) reportStarted(ctx context.Context, v *Volume, wish Wish) {
	if g.Resizes == nil || !wish.Report || state(v.Claim) != v1.PersistentVolumeClaimNodeResizePending {
		return
	}
	if err := volume.ReportNodeResizeStarted(ctx, g.Resizes, v.claimName(), v.Claim.UID); err != nil {
		g.Log.Warn("a claim could not be told that its volume grows on the node", "claim", v.claimName(), "size", wish.Size.String(), "error", err)
	}
}

// reportFailure tells the claim of an attempt that has failed for certain, and is repeated.
func (g *Grower) reportFailure(ctx context.Context, v *Volume, wish Wish, failed error) {
	if g.Resizes == nil || !wish.Report || !errors.Is(failed, volume.ErrResizeFailed) {
		return
	}
	if err := g.Resizes.ReportNodeResize(ctx, v.claimName(), v.Claim.UID, wish.Size, failed); err != nil {
		g.Log.Warn("a claim could not be told that its volume does not grow on the node", "claim", v.claimName(), "size", wish.Size.String(), "error", err)
	}
}

// refusedForGood is an error of NodeExpand. If an attempt has failed for certain, and the claim
// asks for another size by now, this one is infeasible: a controller can go on to the other.
func (v *Volume) refusedForGood(wish Wish, err error) error {
	asked := v.Claim.Spec.Resources.Requests[v1.ResourceStorage]
	if !wish.Report || asked.Cmp(wish.Size) == 0 || !errors.Is(err, volume.ErrResizeFailed) {
		return err
	}
	return fmt.Errorf("%w, and the claim asks for %s by now: %w", volume.ErrResizeInfeasible, asked.String(), err)
}

func (v *Volume) claimName() types.NamespacedName {
	return types.NamespacedName{Namespace: v.Claim.Namespace, Name: v.Claim.Name}
}

// report tells the claim. A claim that cannot be told does not keep the volume from its pod: it
// is told later.
func (g *Grower) report(ctx context.Context, v *Volume, outcome Refusal) {
	if g.Resizes == nil || outcome.Reported {
		return
	}
	name := v.claimName()
	if v.late = g.Resizes.ReportNodeResize(ctx, name, v.Claim.UID, outcome.Size, outcome.Err); v.late != nil {
		g.Log.Warn("a claim could not be told how its growth on the node ended; it is told later", "claim", name, "size", outcome.Size.String(), "error", v.late)
		return
	}
	outcome.Reported = true
	v.Refuse(outcome)
}

// errIsMounted takes the mark of [volume.NothingDone] from an error that it is joined with.
var errIsMounted = errors.New("the volume is mounted")

func (v *Volume) failed(err error) error {
	if v.mounted && !volume.IsUncertain(err) {
		err = fmt.Errorf("%w, and has not grown: %w", errIsMounted, err)
	}
	return (&volume.Error{Op: "NodeExpandVolume", Plugin: v.Record.Plugin, Volume: v.Spec.Name()}).About(err)
}

// ClaimReader remembers the claim that is read from a source.
type ClaimReader struct {
	objects.Source
	Claim *v1.PersistentVolumeClaim
}

// Get implements [objects.Source].
func (r *ClaimReader) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	object, err := r.Source.Get(ctx, ref)
	if claim, ok := object.(*v1.PersistentVolumeClaim); ok && err == nil {
		r.Claim = claim
	}
	return object, err
}
