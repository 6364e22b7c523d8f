package volumemanager

import (
	"testing"
	"time"

	"github.com/podvol/podvol/util/testenv/clockjump"
	"github.com/podvol/podvol/volume/internal/work"
)

// A refresh is due by the clock that says so first, and the queue is told its time and not a
// pause, which stands still while the machine sleeps.
func TestARefreshIsDueByEitherClock(t *testing.T) {
	now := time.Now()
	s := &podVolume{pod: &podState{}, refreshAt: clockjump.Ahead(now.Add(time.Hour), time.Minute)}
	s.takeDue(now)
	if want := (work.Result{At: s.refreshAt}); s.refreshAt.IsZero() || s.next(now) != want {
		t.Errorf("before it is due: next is %+v, want %+v", s.next(now), want)
	}
	s.refreshAt = clockjump.Ahead(s.refreshAt, 2*time.Hour)
	before := s.generation
	s.takeDue(now)
	if !s.refreshAt.IsZero() || s.generation == before {
		t.Errorf("after a sleep: it is refreshed at %v, and the generation is %d, before %d", s.refreshAt, s.generation, before)
	}
}
