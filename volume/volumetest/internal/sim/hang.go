package sim

import (
	"context"
	"errors"
	"sync"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/volume/volumetest/internal/harness"
)

const (
	// Patience is the deadline of an operation that hangs.
	Patience = 10 * time.Second
	// Grace is what cleaning up may take after it, where everything hangs.
	Grace = 30 * time.Second
)

// Hanging is an operation that runs while a call hangs.
type Hanging struct {
	Name string
	Run  func(context.Context) error
	// Allowed is how long after its context's end it may return; 0: a second.
	Allowed time.Duration
	// Failed, if not nil, looks at its error while the call still hangs.
	Failed func(error)
}

// Hang fails unless what runs returns in time although the point's call hangs,
// and leaves no goroutine once the call has returned.
func (n *Node) Hang(p Point, onward bool, h Hanging) {
	n.t.Helper()
	synctest.Wait() // what an earlier operation has begun, as a connection, is complete
	before := harness.Goroutines()
	late := n.lateness(p, onward, h)
	switch {
	case !onward && late > max(h.Allowed, time.Second):
		n.t.Errorf("%s returned %v after its context had ended", h.Name, late)
	case late > Grace:
		n.t.Errorf("%s returned %v after its context had ended, although all hung", h.Name, late)
	}
	// What was left running may take its time to notice.
	time.Sleep(time.Hour)
	synctest.Wait()
	for id, stack := range harness.Goroutines() {
		if before[id] == "" {
			n.t.Errorf("a goroutine is left:\n%s", stack)
		}
	}
}

// lateness runs something until it returns although the point's call hangs,
// then releases the call. It returns how long after its context's end that was.
func (n *Node) lateness(p Point, onward bool, h Hanging) time.Duration {
	n.t.Helper()
	release := make(chan struct{})
	_, remove := n.Disturb(p, Disturbance{Release: release, Onward: onward})
	free := sync.OnceFunc(func() {
		remove()
		close(release)
	})
	defer free()
	ctx, cancel := context.WithTimeout(n.t.Context(), Patience)
	defer cancel()
	deadline := time.Now().Add(Patience)
	done := n.t.Async(func() error { return h.Run(ctx) })
	select {
	case err := <-done:
		if errors.Is(err, harness.ErrPanicked) {
			return 0
		}
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			n.t.Errorf("the error does not wrap context.DeadlineExceeded: %v", err)
		}
		if err != nil && h.Failed != nil {
			h.Failed(err)
		}
	case <-time.After(Patience + time.Hour):
		free()
		<-done
		return time.Hour
	}
	return time.Since(deadline)
}
