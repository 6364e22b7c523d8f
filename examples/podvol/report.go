package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/podvol/podvol/examples/podvol/internal/plaintext"
	"github.com/podvol/podvol/examples/podvol/internal/rows"
	"github.com/podvol/podvol/examples/podvol/internal/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// report prints one row for each volume as soon as the outcome of this call is
// known, so that a slow volume holds no other row back. A row never tells what
// was before the call, or the operation under way.
type report struct {
	printer  rows.Printer
	progress *progress
	order    map[rows.Key]int
	desired  volumemanager.VolumeState // of the call; all else is a failure
	// edit and editRow may complete a status, and its row, before it is printed.
	edit    func(*volumemanager.VolumeStatus)
	editRow func(*rows.Row)

	// interrupted returns what has ended the call before its time, nil where nothing has.
	interrupted func() error

	reached   int      // how many volumes are as desired
	stopped   []string // those that the interrupt has left undone
	failed    bool     // some volume is not as desired
	something bool     // some volume is, or may be, mounted

	mu    sync.Mutex
	known []volumemanager.VolumeStatus // not yet printed
	doing map[rows.Key]volume.Progress // of those that say how far they are
	seen  map[rows.Key]bool
	news  chan struct{}
}

func newReport(p rows.Printer, errOut io.Writer, goal volumemanager.VolumeState, expected []rows.Key) *report {
	r := &report{
		desired:  goal,
		printer:  p,
		progress: newProgress(errOut),
		order:    make(map[rows.Key]int, len(expected)),
		edit:     func(*volumemanager.VolumeStatus) {},
		editRow:  func(*rows.Row) {},

		interrupted: func() error { return nil },

		doing: make(map[rows.Key]volume.Progress),
		seen:  make(map[rows.Key]bool, len(expected)),
		news:  make(chan struct{}, 1),
	}
	for i, key := range expected {
		r.order[key] = i
	}
	return r
}

// printDelay is how long rows are kept back to print them in order; what takes
// longer is printed when it is ready, and the terminal shows progress.
const printDelay = time.Second

// statuses is who tells every new status of a volume: the manager.
type statuses interface {
	Subscribe(func(volumemanager.VolumeStatus)) (stop func())
}

// isOutcome reports whether an operation has come to this status. All others
// tell the operation under way, beside state and error of what was before.
func isOutcome(v volumemanager.VolumeStatus) bool {
	return v.Ended != "" || v.State == volumemanager.StateUnmounted
}

// run prints the outcomes that work shows and that the manager reports
// meanwhile, until work returns, also when printing fails on the way.
func (r *report) run(manager statuses, work func(show func(volumemanager.VolumeStatus))) error {
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
			return errors.Join(printing, r.flush(), r.printer.Close())
		case <-tick.C:
			news = r.news
			printing = errors.Join(printing, r.flush())
			r.progress.show(r.waiting(), time.Since(start))
		case <-news:
			printing = errors.Join(printing, r.flush())
		}
	}
}

// show takes a volume's outcome; only the first of an expected volume counts.
func (r *report) show(v volumemanager.VolumeStatus) {
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
func (r *report) note(v volumemanager.VolumeStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v.Progress != (volume.Progress{}) {
		r.doing[rows.KeyOf(v)] = v.Progress
	}
}

// waiting returns the names of the volumes that are waited for, in order, and
// how far those are that say it.
func (r *report) waiting() (names []string) {
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

func (r *report) take() []volumemanager.VolumeStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.known
	r.known = nil
	slices.SortStableFunc(known, func(a, b volumemanager.VolumeStatus) int {
		return cmp.Compare(r.order[rows.KeyOf(a)], r.order[rows.KeyOf(b)])
	})
	return known
}

func (r *report) flush() error {
	known, ready := r.take(), []rows.Row(nil)
	r.progress.clear()
	for _, v := range known {
		r.edit(&v)
		row := r.outcome(v)
		r.editRow(&row)
		ready = append(ready, row)
	}
	return r.printer.Add(ready...)
}

// outcome is the row of what the call has come to for a volume, and counts it: a
// volume that stays mounted as it was has not reached what was asked for.
func (r *report) outcome(v volumemanager.VolumeStatus) rows.Row {
	if v.State == volumemanager.StateUnused && v.Err == nil {
		return rows.Of(v) // there is nothing to reach
	}
	stays := v.State == volumemanager.StateMounted
	if stays || v.Err == nil || volume.IsUncertain(v.Err) {
		r.something = true
	}
	if v.Err == nil && v.State == r.desired {
		r.reached++
		return rows.Of(v)
	}
	r.failed = true
	row := rows.Of(v)
	if why := r.interrupted(); why != nil && (errors.Is(v.Err, why) || errors.Is(v.Err, context.Canceled)) {
		row.Quiet, r.stopped = true, append(r.stopped, row.Pod+" "+row.Volume)
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

// conclusion says where an interrupt has left things; undo is the command that undoes this one.
func (r *report) conclusion(undo string) string {
	text := fmt.Sprintf("interrupted; volumes that are %s: %d of %d", r.desired, r.reached, len(r.order))
	if len(r.stopped) > 0 {
		text += ", not: " + few(r.stopped)
	}
	text += ". The same command goes on with the rest."
	if undo != "" {
		text += " To unmount what is there: " + undo
	}
	return text
}

// shellJoin quotes words for a POSIX shell where they need it.
func shellJoin(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = w
		if w == "" || strings.ContainsFunc(w, func(r rune) bool {
			return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:=,@%+", r)
		}) {
			quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// progress is one line on a terminal that says for what it waits; elsewhere
// it is silent.
type progress struct {
	terminal io.Writer // nil where there is none
	shown    bool
}

func newProgress(w io.Writer) *progress {
	if !isTerminal(w) {
		return &progress{}
	}
	return &progress{terminal: plaintext.AsGiven(w)}
}

func isTerminal(w io.Writer) bool { return table.TerminalWidth(w) > 0 }

const clearLine = "\r\x1b[K"

// maxNamed is how many volumes the line names.
const maxNamed = 3

func (p *progress) show(waiting []string, elapsed time.Duration) {
	if p.terminal == nil || len(waiting) == 0 {
		return
	}
	p.shown = true
	noun := "volumes"
	if len(waiting) == 1 {
		noun = "volume"
	}
	named, more := waiting, ""
	if len(waiting) > maxNamed {
		named, more = waiting[:maxNamed], ", …"
	}
	begin, names := fmt.Sprintf("Waiting for %d %s (%ds): ", len(waiting), noun, int(elapsed.Seconds())), plaintext.Cell(strings.Join(named, ", "))+more
	if width := table.TerminalWidth(p.terminal); width > 0 {
		names = table.Shorten(names, max(1, width-1-len(begin))) // of a line that wraps, only the end could be cleared
	}
	fmt.Fprint(p.terminal, clearLine+begin+names)
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.terminal, clearLine)
		p.shown = false
	}
}
