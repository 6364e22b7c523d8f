package persistentvolume

import (
	"cmp"
	"context"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
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

// catchUp notes what the API itself has, and returns what it has no more, in
// order.
func (l *latest[T]) catchUp(ctx context.Context) (news bool, missing []volume.ObjectRef, err error) {
	before := l.all()
	list, err := objects.List[T](ctx, objects.Live(l.objects), l.kind, metav1.NamespaceAll)
	if err != nil {
		return false, nil, err
	}
	stored := make(map[types.NamespacedName]bool, len(list))
	for _, object := range list {
		name := types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
		stored[name] = true
		prior, known := l.last(name)
		news = news || !known || isNewer(object, prior)
		l.put(object)
	}
	for _, object := range before {
		if name := (types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}); !stored[name] {
			missing = append(missing, volume.ObjectRef{Kind: l.kind, NamespacedName: name})
		}
	}
	slices.SortFunc(missing, func(a, b volume.ObjectRef) int { return cmp.Compare(a.String(), b.String()) })
	return news, missing, nil
}
