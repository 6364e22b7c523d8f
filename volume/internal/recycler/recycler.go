// Package recycler empties released PersistentVolumes in this process, for the plugins
// whose volumes are directories: what may be emptied, for how long, and with which events.
// A plugin adds how it reaches the directory, and how it sees that no pod uses it.
package recycler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/sharedirs"
	"github.com/podvol/podvol/volume/internal/wipe"
	"github.com/podvol/podvol/volume/reclaim"
	"github.com/podvol/podvol/volume/recyclerpod"
)

// Action is the action on a released volume's content.
type Action string

const (
	// DryRun only says what would be deleted.
	DryRun Action = ""
	// Delete deletes it.
	Delete Action = "Delete"
	// Archive moves it into an archive.
	Archive Action = "Archive"
)

// Check refuses an action that there is not. Field is its name in the configuration.
func (a Action) Check(field string) error {
	switch a {
	case DryRun, Delete, Archive:
		return nil
	}
	return volume.Invalid(field, "%q is none of %q, %q and %q", a, DryRun, Delete, Archive)
}

// MaxTimeout is the most that the API takes as activeDeadlineSeconds.
const MaxTimeout = math.MaxInt32 * time.Second

const (
	defaultTimeoutPerGiB = 30 * time.Second
	defaultProgressEvery = 10 * time.Second
)

// Timeout is how long emptying a volume of this capacity may take: perGiB for each full
// GiB, and no less than least. 0 for perGiB means 30 seconds, as in Kubernetes.
func Timeout(pv *v1.PersistentVolume, least, perGiB time.Duration) time.Duration {
	capacity := pv.Spec.Capacity[v1.ResourceStorage]
	gib, each := capacity.Value()>>30, cmp.Or(perGiB, defaultTimeoutPerGiB)
	if gib > int64(MaxTimeout/each) {
		return MaxTimeout
	}
	return min(MaxTimeout, max(least, time.Duration(gib)*each))
}

// CheckReleased refuses a spec that is not the PersistentVolume of this name, released
// and to be recycled, with the UIDs that tell its release.
func CheckReleased(pvName string, spec *volume.Spec) error {
	pv := spec.PersistentVolume
	switch {
	case spec.Volume != nil || pv == nil || pv.Name != pvName:
		return volume.Invalid("volume", "is not PersistentVolume %q; nothing else can be recycled", pvName)
	case pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimRecycle:
		return volume.Invalid("persistentVolumeReclaimPolicy", "is %q, not %q", pv.Spec.PersistentVolumeReclaimPolicy, v1.PersistentVolumeReclaimRecycle)
	case recyclerpod.ReleaseID(pv) == "":
		return volume.Invalid("claimRef", "the UIDs of the PersistentVolume and of the claim that has left it are needed")
	}
	return nil
}

// ReadOnly refuses a volume that no claim can have written to. Field says so.
func ReadOnly(field string) error {
	return volume.Invalid(field, "the PersistentVolume can only be read, so no claim has written what is in it; use reclaim policy %s", v1.PersistentVolumeReclaimRetain)
}

// Recycling is the emptying of one released volume. Its fields are set before its first
// method is called.
type Recycling struct {
	// PV is the volume, which is not changed.
	PV *v1.PersistentVolume
	// Source names its directory in events and errors.
	Source string
	// On is where it lies.
	On sharedirs.Medium
	// Action, Timeout and ProgressEvery are the configuration's. 0 for ProgressEvery
	// means ten seconds.
	Action                 Action
	Timeout, ProgressEvery time.Duration
	// VerifyUnused asks whether the data may be destroyed, as far as the host and this
	// node's mounts say. It is asked right before each destruction, and during it.
	VerifyUnused func(context.Context) error
	// Explain adds advice to an error of the file system; nil adds none.
	Explain func(error) error
	// Events has the listener.
	Events Events

	done atomic.Int64
}

// Run verifies that the volume is unused and calls reach, which reaches the volume's
// directory and calls [Recycling.Empty], within the timeout. Where reach is given up
// after its beginning, the error is a *[reclaim.IncompleteError].
func (r *Recycling) Run(ctx context.Context, reach func(context.Context) error) error {
	if err := r.VerifyUnused(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.Timeout,
		fmt.Errorf("the %s that a volume of this size gets are over: %w", r.Timeout, context.DeadlineExceeded))
	defer cancel()
	err := reach(ctx)
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && abandoned.Started {
		return &reclaim.IncompleteError{Done: r.done.Load(), Err: err}
	}
	return err
}

// Empty takes the action on the volume, which is open as root. It may outlive Run. It
// refuses a volume in which volumes are provisioned ([sharedirs.ErrHoldsVolumes]).
// Archive is called for that action, and calls [Recycling.Move].
func (r *Recycling) Empty(ctx context.Context, root *os.File, archive func(context.Context, wipe.Options) error) error {
	if err := r.verifyHoldsNoBase(ctx, root); err != nil {
		return err
	}
	options := wipe.Options{
		MayGoOn: func(ctx context.Context) error {
			if err := r.VerifyUnused(ctx); err != nil {
				return err
			}
			return r.verifyNoBase(root)
		},
		Every: cmp.Or(r.ProgressEvery, defaultProgressEvery), Count: &r.done,
		Report: func(p wipe.Progress) {
			r.Events.Normal("%s of %s gone after %s", entries(p.Done), r.Source, p.Elapsed.Round(time.Second))
		},
	}
	switch r.Action {
	case Archive:
		return archive(ctx, options)
	case Delete:
		if err := r.VerifyUnused(ctx); err != nil {
			return err
		}
		r.Events.Normal("deleting the contents of %s, in no more than %s", r.Source, r.Timeout)
		return r.finished("deleted", wipe.Empty(ctx, root, options))
	}
	return r.dryRun(ctx, root)
}

// Move moves the content of the volume, which is open as from, into a directory of its
// release in archives.
func (r *Recycling) Move(ctx context.Context, from, archives *os.File, options wipe.Options) error {
	if err := r.VerifyUnused(ctx); err != nil {
		return err
	}
	r.Events.Normal("moving the contents of %s to %s", r.Source, archives.Name())
	archive, err := wipe.Archive(ctx, from, archives, NameWithin(r.PV.Name, maxArchiveName)+"-"+recyclerpod.ReleaseID(r.PV), options)
	if archive != "" {
		r.Events.Normal("%s has what was in %s", path.Join(archives.Name(), archive), r.Source)
	}
	return r.finished("moved", err)
}

// maxArchiveName leaves room for additions in a name of at most 255 bytes.
const maxArchiveName = 200

// NameWithin is a name of at most so many bytes, which ends as names of objects do.
func NameWithin(name string, most int) string {
	return strings.TrimRight(name[:min(len(name), most)], ".-")
}

// verifyNoBase refuses a volume in which volumes are provisioned.
func (r *Recycling) verifyNoBase(root *os.File) error {
	base, err := sharedirs.HasBook(root)
	if err == nil && base {
		err = sharedirs.HoldsVolumes(r.Source, sharedirs.BookOf(root.Name()), r.On)
	}
	return volume.NothingDone(r.explain(err))
}

// verifyHoldsNoBase refuses one that is above such a directory, too. It reads every
// directory, and so comes before anything is removed.
func (r *Recycling) verifyHoldsNoBase(ctx context.Context, root *os.File) error {
	if err := r.verifyNoBase(root); err != nil {
		return err
	}
	book, err := wipe.FindDir(ctx, root, sharedirs.InBook)
	if err == nil && book != "" {
		err = sharedirs.HoldsVolumes(r.Source, book, r.On)
	}
	return volume.NothingDone(r.explain(err))
}

func (r *Recycling) dryRun(ctx context.Context, root *os.File) error {
	found, err := wipe.Survey(ctx, root)
	if err != nil {
		return volume.NothingDone(r.explain(err))
	}
	e := &reclaim.DryRunError{
		Source: r.Source, Entries: found.Entries, Bytes: found.Bytes, First: found.First, Mounts: found.Mounts,
		Do: fmt.Sprintf("to empty it for its next claim, set the recycler's action to %s or %s", Delete, Archive),
	}
	r.Events.Tell(v1.EventTypeWarning, e.Error())
	return volume.NothingDone(e)
}

func (r *Recycling) finished(what string, err error) error {
	if err == nil {
		r.Events.Normal("%s is empty: %s %s", r.Source, entries(r.done.Load()), what)
	}
	return r.explain(err)
}

func (r *Recycling) explain(err error) error {
	if r.Explain == nil {
		return err
	}
	return r.Explain(err)
}

func entries(n int64) string {
	if n == 1 {
		return "1 entry"
	}
	return fmt.Sprintf("%d entries", n)
}
