package persistentvolume

import (
	"context"
	"errors"
	"slices"

	"github.com/podvol/podvol/volume"
)

// ErrNotRunning says that a [Controller] does not run any more.
var ErrNotRunning = errors.New("the controller does not run any more")

// Idle returns once the controller has done all that there is to do: it has seen
// whatever was stored before the call, nothing is queued and no operation runs.
// An object that waits for its next try after a failure, or for a change, counts
// as done. So does what a cache ([objects.Cached]) does not show yet, if it was
// deleted meanwhile. It waits for the controller to be run, and may be called
// often, at the cost of a list of everything. The error is the end of ctx,
// [ErrNotRunning], or a failed look-up.
func (c *Controller) Idle(ctx context.Context) error {
	select {
	case <-c.synced:
	case <-c.ended:
		return ErrNotRunning
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if c.cluster.podsKnown != nil && c.cluster.podsComplete() {
		c.enqueueAll()
	}
	var missing []volume.ObjectRef
	for {
		news, gone, err := c.cluster.catchUp(ctx)
		if err != nil {
			return err
		}
		select {
		case <-c.activity.Idle():
			if c.queue.Ended() {
				return ErrNotRunning // it has given up what it had to do
			}
		case <-c.ended:
			return ErrNotRunning
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		// What a cache still has is enqueued when it has it no more.
		if !news && slices.Equal(gone, missing) {
			return nil
		}
		missing = gone
	}
}
