package work

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/util/testenv/clockjump"
)

// A look at the clocks has a key looked at whose time has come by one of them, however long
// its timer still runs.
func TestAKeyWaitsForATimeByBothClocks(t *testing.T) {
	tests := map[string]struct {
		jump  time.Duration
		looks int
	}{
		"no jump":           {0, 1},
		"a nap":             {59 * time.Minute, 1},
		"a sleep":           {61 * time.Minute, 2},
		"the clock was set": {50 * 365 * 24 * time.Hour, 2},
		"it was set back":   {-time.Hour, 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var looks int
			var at time.Time
			q := NewQueue(Config[string]{Reconcile: func(context.Context, string) Result {
				looks++
				return Result{At: at}
			}})
			// A time of a bubble of synctest has no reading of the monotonic clock.
			at = clockjump.Ahead(time.Now().Add(time.Hour), tc.jump)
			ctx, cancel := context.WithCancel(t.Context())
			s := &keyState[string]{key: "token", at: at}
			q.ctx, q.states[s.key] = ctx, s
			q.wait(s, time.Hour, Result{At: at})
			looks++ // the one that has had this result
			q.checkClocks()
			<-q.Activity.Idle()
			cancel()
			q.Wait()
			if looks != tc.looks {
				t.Errorf("%d looks, want %d", looks, tc.looks)
			}
		})
	}
}

// One timer is for all keys that wait for a time. A look at the clocks works on no key before
// its time, and there is none for keys that wait for something else.
func TestOneLookAtTheClocksForAllKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		looks := make(chan int, 10000)
		q := NewQueue(Config[int]{Workers: 1, Reconcile: func(_ context.Context, key int) Result {
			looks <- key
			switch {
			case key%2 == 0:
				return Result{At: time.Now().Add(time.Hour), Reason: errors.New("a token")}
			default:
				return Result{After: time.Hour}
			}
		}})
		ctx, cancel := context.WithCancel(t.Context())
		q.Start(ctx)
		q.Enqueue(1)
		synctest.Wait()
		if q.clock != nil {
			t.Error("the clocks are looked at though no key waits for a time")
		}
		for key := range 1000 {
			q.Enqueue(key)
		}
		time.Sleep(59*time.Minute + 30*time.Second)
		if n := len(looks); n != 1001 {
			t.Errorf("%d looks", n)
		}
		q.mu.Lock()
		clock := q.clock
		q.mu.Unlock()
		time.Sleep(time.Hour)
		if n := len(looks); n != 2001 {
			t.Errorf("%d looks in the second hour", n)
		}
		cancel()
		q.Wait()
		if clock == nil || q.clock != nil {
			t.Error("the clocks were not looked at, or are so after the end")
		}
	})
}

func BenchmarkLookAtClocks(b *testing.B) {
	for _, n := range []int{1000, 20000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			q := NewQueue(Config[int]{})
			for key := range n {
				q.state(key).retry = time.NewTimer(time.Hour)
				q.state(key).at = time.Now().Add(time.Hour)
			}
			for b.Loop() {
				q.checkClocks()
				q.clock.Stop()
			}
			q.Wait()
		})
	}
}
