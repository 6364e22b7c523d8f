package mountwatch_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/volume/volumemanager/internal/mountwatch"
)

// Changes are gathered for a second, a slow look is followed by a longer pause, and the end of
// the context ends the watch.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		changes, began := make(chan struct{}, 1), time.Now()
		var looks []time.Duration
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			mountwatch.Watch(ctx, changes, func() {
				looks = append(looks, time.Since(began))
				time.Sleep(100 * time.Millisecond)
			})
		}()
		change := func() { changes <- struct{}{}; synctest.Wait() }
		change()
		change() // while it waits
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		pass(2 * time.Second)
		if len(looks) != 1 || looks[0] != time.Second {
			t.Errorf("looks after two changes: %v", looks)
		}
		change()
		pass(10 * time.Second)
		if len(looks) != 2 || looks[1] != 7*time.Second {
			t.Errorf("looks after a slow one: %v", looks)
		}
		change()
		cancel()
		<-ended
		if len(looks) != 2 {
			t.Errorf("a look after the end: %v", looks)
		}
	})
}

func TestWatchOfNothing(t *testing.T) {
	mountwatch.Watch(t.Context(), nil, func() { t.Error("there is nothing to look at") })
}
