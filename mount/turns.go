package mount

import (
	"sync"
	"time"
)

// turnLimit is how long a call keeps others from its target. One that takes
// longer has taken its mount out of the table and hangs after that, or hangs in
// looking the target up, as others would.
const turnLimit = time.Second

// turns has the calls of several rungs for one target look at the table and act
// on what they saw one after the other: of stacked mounts, a second call in
// between would take the one beneath.
type turns struct {
	mu   sync.Mutex
	last map[string]*turn // by target
}

type turn struct {
	began time.Time
	ended chan struct{}
}

// take waits for the turn at target, for turnLimit after the one before began
// at most.
func (t *turns) take(target string) (end func()) {
	for {
		mine, before := t.try(target)
		if before == nil {
			return func() { t.end(target, mine) }
		}
		limit := time.NewTimer(time.Until(before.began.Add(turnLimit)))
		select {
		case <-before.ended:
		case <-limit.C:
		}
		limit.Stop()
	}
}

// try takes the turn, or returns whose it is.
func (t *turns) try(target string) (mine, before *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before := t.last[target]; before != nil && time.Since(before.began) < turnLimit {
		return nil, before
	}
	if t.last == nil {
		t.last = map[string]*turn{}
	}
	mine = &turn{began: time.Now(), ended: make(chan struct{})}
	t.last[target] = mine
	return mine, nil
}

func (t *turns) end(target string, mine *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	close(mine.ended)
	if t.last[target] == mine {
		delete(t.last, target)
	}
}
