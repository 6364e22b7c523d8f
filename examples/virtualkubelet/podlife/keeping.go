package podlife

import (
	"context"
	"slices"
	"sync"
)

// keeping runs the containers of a pod in their order.
type keeping struct {
	life    *life
	ctx     context.Context
	running sync.WaitGroup
}

// run returns when no container runs any more, or ctx has ended.
func (k *keeping) run() {
	following, stop := context.WithCancel(k.ctx)
	var ephemeral sync.WaitGroup
	ephemeral.Go(func() { k.followEphemeral(following) })
	if k.initialise() {
		var all sync.WaitGroup
		for _, c := range k.of(mainKind) {
			all.Go(func() { c.keep(k.ctx) })
		}
		all.Wait()
	}
	stop()
	ephemeral.Wait()
	for _, c := range slices.Backward(k.of(sidecarKind)) {
		c.stop()
		c.waitIfBegun()
	}
	for _, c := range k.of(ephemeralKind) {
		c.stop()
	}
	k.running.Wait()
}

func (k *keeping) of(kind kind) []*container {
	k.life.mu.Lock()
	defer k.life.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(k.life.all), func(c *container) bool { return c.kind != kind })
}

// initialise runs the init containers one after the other. Of a restartable one only
// the start is waited for. It returns false where the pod's containers must not be run.
func (k *keeping) initialise() bool {
	l := k.life
	l.mu.Lock()
	all := slices.Clone(l.all)
	l.mu.Unlock()
	runs := slices.ContainsFunc(k.of(mainKind), func(c *container) bool { return c.wasFound() })
	for _, c := range all {
		switch {
		case c.kind == initKind && runs && !c.runsNow():
			// It has ended well, since its successors have been started.
		case c.kind == initKind:
			c.keep(k.ctx)
			if !c.endedWell() {
				return false
			}
		case c.kind == sidecarKind:
			c.markBegun()
			k.running.Go(func() { c.keep(k.ctx) })
			if runs {
				continue
			}
			select {
			case <-c.started:
			case <-l.starting.Done():
			}
		}
	}
	// What an earlier agent has left running must be ended even where nothing may be
	// started any more.
	return l.starting.Err() == nil && l.isShared() || runs
}

// followEphemeral runs ephemeral containers as they are added, until ctx ends.
func (k *keeping) followEphemeral(ctx context.Context) {
	for {
		for _, c := range k.of(ephemeralKind) {
			if c.markBegun() {
				k.running.Go(func() { c.keep(k.ctx) })
			}
		}
		select {
		case <-k.life.ephemeral:
		case <-ctx.Done():
			return
		}
	}
}

func (l *life) isShared() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.shared != nil
}
