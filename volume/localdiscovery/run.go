package localdiscovery

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
)

const (
	// firstRetry and lastRetry bound the pause before another try after a failure.
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	// firstSettling doubles settlings times: the kernel gives the sign that a
	// device is closed or unmounted a moment before it lets go of it.
	firstSettling = 50 * time.Millisecond
	settlings     = 8
)

// Run offers the disks that are there, and later ones as soon as they come, until
// ctx ends and it returns nil. It does nothing while nothing changes: it waits
// for signs of the mount table, of the directories and the targets of their links
// (inotify(7)), of the swap table, and of its PersistentVolumes. Only failures
// are retried after a while. Directories need not exist yet. The error says that
// something can no longer be watched, or that the configuration cannot work.
func (d *Discoverer) Run(ctx context.Context) error {
	classes, err := d.check()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &runner{Discoverer: d, classes: classes, again: make(chan struct{}, 1)}
	if r.watch, err = newPathWatch(d.System); err != nil {
		return fmt.Errorf("local volumes: %w", err)
	}
	defer r.watch.close()
	d.passes.setWake(r.poke)
	defer d.passes.setWake(nil)
	defer d.Objects.WatchKind(kindVolume, r.volumeChanged)()
	return r.run(ctx, d.Mounts.Subscribe(ctx))
}

// runner is one Run.
type runner struct {
	*Discoverer
	classes []Class
	watch   *pathWatch
	again   chan struct{} // holds a value if there is to be another pass

	mu sync.Mutex
	// volumes are the names of those that the last pass has looked at, changed
	// those that have changed since it began.
	volumes map[string]bool
	changed map[string]bool
	// numbers are the devices that could not be offered as they were in use.
	numbers []uint64
}

func (r *runner) poke() {
	select {
	case r.again <- struct{}{}:
	default:
	}
}

// volumeChanged has another pass made if the volume is one of this node's disks.
func (r *runner) volumeChanged(ref volume.ObjectRef) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed != nil {
		r.changed[ref.Name] = true
	}
	if r.volumes[ref.Name] {
		r.poke()
	}
}

func (r *runner) run(ctx context.Context, mounts <-chan struct{}) error {
	pause, settled := retry.Pause{First: firstRetry, Last: lastRetry}, 0
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	for {
		before := r.mountsThatMatter()
		failed, busy, err := r.round(ctx)
		if err != nil || ctx.Err() != nil {
			return ignoreEnd(ctx, err)
		}
		timer.Stop()
		switch {
		case failed:
			timer.Reset(pause.Next())
		case busy && settled < settlings:
			timer.Reset(firstSettling << settled)
			settled++
		}
		if !failed {
			pause.Reset()
		}
		for wait := true; wait; {
			sign := true
			select {
			case _, ok := <-mounts:
				if !ok && ctx.Err() == nil {
					return errors.New("local volumes: the mount table can no longer be watched")
				}
				wait = ctx.Err() == nil && before != "" && before == r.mountsThatMatter()
			case <-r.watch.changed:
				wait = false
			case err := <-r.watch.failed:
				return fmt.Errorf("local volumes: their directories can no longer be watched: %w", err)
			case <-r.again:
				wait = false
			case <-timer.C:
				wait, sign = false, false
			case <-ctx.Done():
				return nil
			}
			if !wait && sign {
				settled = 0
			}
		}
	}
}

func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// round looks at everything once, and again where something had not been watched
// before it was looked at. It reports whether something failed that is to be tried
// again, and whether a device is in use that may not be for long; the error ends
// Run.
func (r *runner) round(ctx context.Context) (failed, busy bool, err error) {
	for {
		r.mu.Lock()
		r.changed = make(map[string]bool)
		r.mu.Unlock()
		p, err := r.newPass(ctx, true)
		if ctx.Err() != nil {
			return false, false, nil
		}
		if p != nil {
			busy = r.note(p)
		}
		failed = err != nil
		if err != nil {
			r.log().Warn("cannot look at all local volumes; it is tried again", "error", err)
		}
		grown, err := r.watchPaths(ctx, p)
		if err != nil || !grown {
			return failed, busy, err
		}
	}
}

// note keeps what the next sign is compared with, and reports whether a device is
// in use.
func (r *runner) note(p *pass) (busy bool) {
	volumes := make(map[string]bool)
	for name := range p.volumes {
		volumes[name] = true
	}
	var numbers []uint64
	for _, t := range p.things {
		if t.State == StateOffered {
			volumes[t.Volume] = true
		}
		if t.isDevice && t.State == StateRefused {
			numbers = append(numbers, t.number)
			busy = busy || errors.Is(t.Err, ErrInUse)
		}
	}
	for _, f := range p.found() {
		r.tell(f)
	}
	slices.Sort(numbers)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.volumes, r.numbers = volumes, numbers
	for name := range r.changed {
		// What this pass itself has written is read once more, too.
		if volumes[name] {
			r.poke()
		}
	}
	r.changed = nil
	return busy
}

// watchPaths watches all that the next pass may find another way, and reports
// whether that is more than before.
func (r *runner) watchPaths(ctx context.Context, p *pass) (grown bool, err error) {
	var want watched
	for _, c := range r.classes {
		want.dirs = append(want.dirs, c.Dir)
	}
	if p != nil {
		for _, t := range p.things {
			if t.isLink {
				want.links = append(want.links, t.Path)
			}
			if t.isDevice && t.State == StateRefused {
				want.busy = append(want.busy, t.Path)
				want.links = append(want.links, t.used...)
			}
		}
	}
	var more bool // no result: a call that was given up may write it after the return
	err = r.bounded(ctx, "watch", func() (err error) {
		more, err = r.watch.set(want)
		return err
	})
	if _, isStuck := isAbandoned(err); isStuck {
		return false, nil // there is another pass when it has ended
	}
	if err != nil {
		return false, fmt.Errorf("local volumes: %w", err)
	}
	return more, nil
}

// mountsThatMatter describes the mounts that a pass would see another way, or "" if
// they cannot be told: other mounts come and go all the time.
func (r *runner) mountsThatMatter() string {
	var b strings.Builder
	for _, c := range r.classes {
		for dir := c.Dir; ; dir = filepath.Dir(dir) {
			e, mounted, err := r.Mounts.At(dir)
			if err != nil {
				return ""
			}
			if mounted {
				fmt.Fprintf(&b, "%d ", e.ID)
			}
			if dir == "/" {
				break
			}
		}
		entries, err := mount.Below(r.Mounts, c.Dir)
		if err != nil {
			return ""
		}
		for _, e := range entries {
			fmt.Fprintf(&b, "%d %d %d %q %q %v\n", e.ID, e.ParentID, e.Device, e.Root, e.Target, e.ReadOnly())
		}
	}
	r.mu.Lock()
	numbers := r.numbers
	r.mu.Unlock()
	for _, n := range numbers {
		entries, err := r.Mounts.ByDevice(n)
		if err != nil {
			return ""
		}
		fmt.Fprintf(&b, "%d:%d ", n, len(entries))
	}
	return b.String()
}
