package persistentvolume

import (
	"context"
	"errors"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// ErrNotRunning says that a [Controller] does not run any more.
var ErrNotRunning = errors.New("the controller does not run any more")

// Idle returns once the controller has done all that there is to do: it has seen
// whatever was stored before the call, nothing is queued and no operation runs.
// What has failed and waits for its next try, or for something to change, counts
// as done. It waits for the controller to be run, and may be called often. The
// error is the end of ctx, [ErrNotRunning], or a failed look-up.
func (c *Controller) Idle(ctx context.Context) error {
	select {
	case <-c.synced:
	case <-c.ended:
		return ErrNotRunning
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := c.catchUp(ctx); err != nil {
		return err
	}
	if c.podsComplete() {
		c.lookAtAll()
	}
	select {
	case <-c.activity.idle():
		return nil
	case <-c.ended:
		return ErrNotRunning
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// catchUp learns of everything that the API has, without waiting for the watches.
func (c *Controller) catchUp(ctx context.Context) error {
	return errors.Join(catchUp(ctx, c, &c.classes), catchUp(ctx, c, &c.pods), catchUp(ctx, c, &c.volumes), catchUp(ctx, c, &c.claims))
}

func catchUp[T metav1.Object](ctx context.Context, c *Controller, l *latest[T]) error {
	before := l.all()
	list, err := objects.List[T](ctx, objects.Live(c.objects), l.kind, metav1.NamespaceAll)
	if err != nil {
		return err
	}
	stored := make(map[volume.ObjectRef]bool, len(list))
	refOf := func(o T) volume.ObjectRef { return volume.NewObjectRef(l.kind, o.GetNamespace(), o.GetName()) }
	for _, object := range list {
		stored[refOf(object)] = true
		l.put(object)
	}
	for _, object := range before {
		if ref := refOf(object); !stored[ref] {
			c.queue.add(ref)
		}
	}
	return nil
}

// activity counts what is to be done or being done.
type activity struct {
	mu sync.Mutex
	n  int
	// none is closed when the count comes to zero; nil unless somebody waits.
	none chan struct{}
}

func (a *activity) add(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n += n
	if a.n == 0 && a.none != nil {
		close(a.none)
		a.none = nil
	}
}

// idle returns what is closed once there is nothing to do, be it for a moment.
func (a *activity) idle() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	none := a.none
	if none == nil {
		none = make(chan struct{})
	}
	if a.n == 0 {
		close(none)
		return none
	}
	a.none = none
	return none
}
