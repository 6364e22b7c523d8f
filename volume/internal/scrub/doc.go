// Package scrub empties the root directory of a volume for its next user:
// [Empty] deletes what is in it, [Archive] moves it away, and [Survey] only
// says what that is. All work from an open directory, so that nothing can lead
// them out of it, never go into what is mounted below, and take links for what
// they are.
//
// Whether the volume may be emptied, and whether the directory is that volume,
// the caller has to know.
package scrub

import (
	"sync/atomic"
	"time"

	"github.com/podvol/podvol/volume"
)

// Progress is how far an emptying has come.
type Progress struct {
	// Done is how many entries were deleted or moved: a directory that is moved
	// is one, a directory that is deleted is one more than what was in it.
	Done int64
	// Elapsed is the time since the beginning.
	Elapsed time.Duration
}

// Reporting is who hears of progress, and how often. The zero value tells
// nobody.
type Reporting struct {
	// Report is called now and then from the goroutine that empties, which it
	// holds up.
	Report func(Progress)
	// Every is the least time between two reports.
	Every time.Duration
	// Count, unless nil, is increased with every entry, for those who cannot
	// wait for the end.
	Count *atomic.Int64
}

// meter counts what is done and reports it.
type meter struct {
	Reporting
	done        int64
	start, last time.Time
}

func newMeter(r Reporting) *meter {
	now := time.Now()
	return &meter{Reporting: r, start: now, last: now}
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
	return &volume.IncompleteError{Done: m.done, Err: err}
}
