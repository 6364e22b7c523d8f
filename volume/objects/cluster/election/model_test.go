package election_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// step is one thing that happens to one of the replicas.
type step struct {
	Do    string
	Who   int
	For   time.Duration // how long it lasts
	Pause time.Duration // until the next
}

// Whatever happens to networks, servers and processes: never do two lead at the
// same time, and once it is quiet one does.
func TestNeverTwoLeadAtTheSameTime(t *testing.T) {
	for _, n := range []int{2, 5} {
		t.Run(fmt.Sprint(n, " rivals"), func(t *testing.T) {
			one := rapid.Custom(func(t *rapid.T) step {
				return step{
					Do:    rapid.SampledFrom([]string{"outage", "outage", "hang", "slow", "late", "lost", "kill", "stop", "nothing"}).Draw(t, "do"),
					Who:   rapid.IntRange(-1, n-1).Draw(t, "who"),
					For:   time.Duration(rapid.IntRange(100, 25_000).Draw(t, "for")) * time.Millisecond,
					Pause: time.Duration(rapid.IntRange(0, 20_000).Draw(t, "pause")) * time.Millisecond,
				}
			})
			rapid.Check(t, func(rt *rapid.T) {
				steps := rapid.SliceOfN(one, 5, 30).Draw(rt, "steps")
				var failure error
				synctest.Test(t, func(t *testing.T) { failure = campaignThrough(newHouse(t), n, steps) })
				if failure != nil {
					rt.Fatal(failure)
				}
			})
		})
	}
}

func campaignThrough(h *house, n int, steps []step) error {
	replicas := make([]*replica, n)
	start := func(i int) {
		replicas[i] = h.replica(fmt.Sprint("r", i))
		replicas[i].linger = time.Duration(i) * 1200 * time.Millisecond // within the grace
		replicas[i].start()
	}
	for i := range replicas {
		start(i)
	}
	for _, s := range steps {
		who := s.Who
		if who < 0 { // whoever leads
			for i, r := range replicas {
				if r.health.State().Leading {
					who = i
				}
			}
		}
		if who >= 0 {
			happen(replicas[who], s, func() { start(who) })
		}
		time.Sleep(s.Pause)
	}
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.broken == nil && len(h.leading) != 1 {
		return fmt.Errorf("%v lead in the end", h.leading)
	}
	return h.broken
}

func happen(r *replica, s step, startAgain func()) {
	trouble := func(f callFault) {
		remove := r.Inject(f)
		time.AfterFunc(s.For, remove)
	}
	switch s.Do {
	case "outage":
		trouble(callFault{Err: clustertest.ErrUnreachable})
	case "hang":
		over := make(chan struct{})
		time.AfterFunc(s.For, func() { close(over) })
		trouble(callFault{Release: over})
	case "slow":
		trouble(callFault{Delay: s.For / 5})
	case "late":
		trouble(callFault{After: true, Delay: s.For / 5})
	case "lost":
		trouble(callFault{Match: isWrite, After: true, Err: clustertest.ErrUnreachable})
	case "kill":
		r.kill()
		startAgain()
	case "stop":
		r.cancel()
		startAgain()
	}
}
