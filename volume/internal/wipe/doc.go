// Package wipe empties the root directory of a volume for its next user: [Empty]
// deletes the entries, [Archive] moves them away, and [Survey] only counts them.
//
//   - All work from an open directory and cannot leave it.
//   - They do not enter file systems that are mounted below it.
//   - They do not follow links.
//
// The caller has to know that this is the volume's directory and that it may be
// emptied; [Options].MayGoOn is asked again on the way.
package wipe

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/podvol/podvol/volume/reclaim"
)

// Progress is how far an emptying has come.
type Progress struct {
	// Done is how many entries were deleted or moved: a directory that is moved is
	// one, a deleted directory counts one beside its entries.
	Done int64
	// Elapsed is the time since the beginning.
	Elapsed time.Duration
}

// ErrNoLonger says that an emptying was stopped because the volume may not be
// emptied any more. The reason is wrapped beside it.
var ErrNoLonger = errors.New("it may not be emptied any more")

// askEvery is the age at which the answer of MayGoOn is too old to remove
// anything more.
const askEvery = time.Second

// Options are the functions to ask and to tell while a volume is emptied. The
// zero value has none.
type Options struct {
	// MayGoOn is asked again before anything is removed whenever its last answer,
	// or the beginning, is a second ago. Its error ends the emptying, with
	// [ErrNoLonger].
	MayGoOn func(ctx context.Context) error
	// Report is called now and then from the goroutine that empties, which it
	// holds up.
	Report func(Progress)
	// Every is the least time between two reports.
	Every time.Duration
	// Count, unless nil, is increased with every entry, for callers that cannot wait
	// for the end.
	Count *atomic.Int64
	// Keep is the name of a directory in the volume that stays, and is emptied too,
	// such as "lost+found"; "" is none. Empty alone heeds it. Another file of this
	// name is deleted.
	Keep string
}

// meter counts entries and reports the number.
type meter struct {
	Options
	done        int64
	start, last time.Time
	asked       time.Time // when MayGoOn said yes
}

func newMeter(r Options) *meter {
	now := time.Now()
	return &meter{Options: r, start: now, last: now, asked: now}
}

// mayGoOn asks whether the volume may still be emptied, if it is time to.
func (m *meter) mayGoOn(ctx context.Context) error {
	if m.MayGoOn == nil || time.Since(m.asked) < askEvery {
		return nil
	}
	if err := m.MayGoOn(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrNoLonger, err)
	}
	m.asked = time.Now()
	return nil
}

func (m *meter) step() {
	m.done++
	if m.Count != nil {
		m.Count.Add(1)
	}
	if m.Report == nil {
		return
	}
	if now := time.Now(); now.Sub(m.last) >= m.Every {
		m.last = now
		m.Report(Progress{Done: m.done, Elapsed: now.Sub(m.start)})
	}
}

// result is the error of an emptying that ended with err.
func (m *meter) result(err error) error {
	if err == nil {
		return nil
	}
	return &reclaim.IncompleteError{Done: m.done, Err: err}
}
