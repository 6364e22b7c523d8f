// Package report prints what becomes of volumes, one row each, as soon as that is known.
package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
	"github.com/podvol/podvol/examples/podvol/internal/progress"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Report prints one row for each volume as soon as the outcome of this call is
// known, so that a slow volume holds no other row back. A row never tells what
// was before the call, or the operation under way.
type Report struct {
	// Edit and EditRow may complete a status, and its row, before it is printed.
	Edit    func(*volumemanager.VolumeStatus)
	EditRow func(*rows.Row)
	// Interrupted returns what has ended the call before its time, nil where nothing has.
	Interrupted func() error

	// What has come of the call once it has run: volumes that the interrupt has left undone, whether
	// some volume is not as desired, and whether some is, or may be, mounted.
	Stopped   []string
	Failed    bool
	Something bool

	printer  rows.Printer
	progress line
	order    map[rows.Key]int
	desired  volumemanager.VolumeState // of the call; all else is a failure
	reached  int                       // how many volumes are as desired

	mu    sync.Mutex
	known []volumemanager.VolumeStatus // not yet printed
	doing map[rows.Key]volume.Progress // of those that say how far they are
	seen  map[rows.Key]bool
	news  chan struct{}
}

// New returns the report of a call for the volumes that are expected, in their order. At a terminal
// errOut says for which of them the call waits.
func New(p rows.Printer, errOut io.Writer, goal volumemanager.VolumeState, expected []rows.Key) *Report {
	r := &Report{
		Edit:        func(*volumemanager.VolumeStatus) {},
		EditRow:     func(*rows.Row) {},
		Interrupted: func() error { return nil },
		printer:     p,
		progress:    progress.On(errOut),
		order:       make(map[rows.Key]int, len(expected)),
		desired:     goal,
		doing:       make(map[rows.Key]volume.Progress),
		seen:        make(map[rows.Key]bool, len(expected)),
		news:        make(chan struct{}, 1),
	}
	for i, key := range expected {
		r.order[key] = i
	}
	return r
}

// printDelay is how long rows are kept back to print them in order; what takes
// longer is printed when it is ready, and the terminal shows progress.
const printDelay = time.Second

// line says at a terminal what is waited for.
type line interface {
	Show(waiting []string, elapsed time.Duration)
	Clear()
}

// Statuses tells every new status of a volume: the manager.
type Statuses interface {
	Subscribe(func(volumemanager.VolumeStatus)) (stop func())
}

// isOutcome reports whether an operation has come to this status. All others
// tell the operation under way, beside state and error of what was before.
func isOutcome(v volumemanager.VolumeStatus) bool {
	return v.Ended != "" || v.State == volumemanager.StateUnmounted
}

// Run prints the outcomes that work shows and that the manager reports
// meanwhile, until work returns, also when printing fails on the way.
func (r *Report) Run(manager Statuses, work func(show func(volumemanager.VolumeStatus))) error {
	stop := manager.Subscribe(func(v volumemanager.VolumeStatus) {
		if isOutcome(v) && v.State != volumemanager.StatePending {
			r.show(v)
			return
		}
		r.note(v)
	})
	defer stop()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		work(r.show)
	}()
	start := time.Now()
	tick := time.NewTicker(printDelay)
	defer tick.Stop()
	news := (<-chan struct{})(nil) // not listened to before rows have settled
	var printing error
	for {
		select {
		case <-ended:
			r.progress.Clear()
			return errors.Join(printing, r.flush(), r.printer.Close())
		case <-tick.C:
			news = r.news
			printing = errors.Join(printing, r.flush())
			r.progress.Show(r.waiting(), time.Since(start))
		case <-news:
			printing = errors.Join(printing, r.flush())
		}
	}
}

// show takes a volume's outcome; only the first of an expected volume counts.
func (r *Report) show(v volumemanager.VolumeStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := rows.KeyOf(v)
	if _, expected := r.order[key]; !expected || r.seen[key] {
		return
	}
	r.seen[key] = true
	r.known = append(r.known, v)
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// note remembers how far a volume is.
func (r *Report) note(v volumemanager.VolumeStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v.Progress != (volume.Progress{}) {
		r.doing[rows.KeyOf(v)] = v.Progress
	}
}

// waiting returns the names of the volumes that are waited for, in order, and
// how far those are that say it.
func (r *Report) waiting() (names []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	keys := make([]rows.Key, 0, len(r.order))
	for key := range r.order {
		if !r.seen[key] {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, func(a, b rows.Key) int { return cmp.Compare(r.order[a], r.order[b]) })
	for _, key := range keys {
		name := key.Volume
		if doing, ok := r.doing[key]; ok {
			name += " (" + doing.String() + ")"
		}
		names = append(names, name)
	}
	return names
}

func (r *Report) take() []volumemanager.VolumeStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known
	r.known = nil
	slices.SortStableFunc(known, func(a, b volumemanager.VolumeStatus) int {
		return cmp.Compare(r.order[rows.KeyOf(a)], r.order[rows.KeyOf(b)])
	})
	return known
}

func (r *Report) flush() error {
	known, ready := r.take(), []rows.Row(nil)
	if len(known) > 0 {
		r.progress.Clear() // rows take its place
	}
	for _, v := range known {
		r.Edit(&v)
		row := r.outcome(v)
		r.EditRow(&row)
		ready = append(ready, row)
	}
	return r.printer.Add(ready...)
}

// outcome is the row of what the call has come to for a volume, and counts it: a
// volume that stays mounted as it was has not reached what was asked for.
func (r *Report) outcome(v volumemanager.VolumeStatus) rows.Row {
	if v.State == volumemanager.StateUnused && v.Err == nil {
		return rows.Of(v) // there is nothing to reach
	}
	stays := v.State == volumemanager.StateMounted
	if stays || v.Err == nil || volume.IsUncertain(v.Err) {
		r.Something = true
	}
	if v.Err == nil && v.State == r.desired {
		r.reached++
		return rows.Of(v)
	}
	r.Failed = true
	row := rows.Of(v)
	if why := r.Interrupted(); why != nil && (errors.Is(v.Err, why) || errors.Is(v.Err, context.Canceled)) {
		row.Quiet, r.Stopped = true, append(r.Stopped, row.Pod+" "+row.Volume)
	}
	switch {
	case v.Err == nil:
		row.Error = "it is " + string(v.State) + ", not " + string(r.desired)
	case stays:
		row.State = string(volumemanager.StateFailed)
		row.Error += "; what was mounted before stays mounted"
	}
	return row
}

// Conclusion says where an interrupt has left things; undo is the command that undoes this one.
func (r *Report) Conclusion(undo string) string {
	text := fmt.Sprintf("interrupted; %d of %d volumes are %s", r.reached, len(r.order), r.desired)
	if len(r.Stopped) > 0 {
		text += ", not: " + choice.Few(r.Stopped)
	}
	text += ". The same command goes on with the rest."
	if undo != "" {
		text += " To unmount what is there: " + undo
	}
	return text
}
