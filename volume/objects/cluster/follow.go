package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// answerTimeout is how long a request may go without an answer before it is
	// given up, should the connection not notice by itself. Client-go waits within a
	// request for as long as a busy API asks it to.
	answerTimeout = 5 * time.Minute
	// watchLife is how long a watch that the server sets no end lives, and watchGrace
	// how long it may outlive the end that it was to set.
	watchLife  = 10 * time.Minute
	watchGrace = time.Minute
)

var errNoAnswer = fmt.Errorf("the API has not answered within %s", answerTimeout)

// follower keeps an entry up to date by watching its object. Lists, watches, their
// pauses and what to do about expired versions are client-go's reflector's, which
// makes one call after the other.
type follower struct {
	entry     *entry
	resource  resource
	clientset kubernetes.Interface
	selector  string

	// until is when the last watch was to end; zero: there was none since the list.
	until time.Time
}

func newFollower(e *entry, r resource, clientset kubernetes.Interface) *follower {
	return &follower{entry: e, resource: r, clientset: clientset, selector: fields.OneTermEqualSelector(metav1.ObjectNameField, e.ref.Name).String()}
}

// run follows until ctx ends.
func (f *follower) run(ctx context.Context, logger klog.Logger) {
	requests := &cache.ListWatch{ListWithContextFunc: f.list, WatchFuncWithContext: f.watch}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(requests, f.clientset), nil, f.entry,
		cache.ReflectorOptions{Name: "podvol", TypeDescription: f.entry.ref.Kind, Logger: &logger}).RunWithContext(ctx)
}

func (f *follower) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	f.until = time.Time{}
	options.FieldSelector = f.selector
	limited, cancel := context.WithTimeoutCause(ctx, answerTimeout, errNoAnswer)
	defer cancel()
	list, err := f.resource.list(limited, f.clientset, f.entry.ref.Namespace, options)
	if err != nil && ctx.Err() == nil {
		f.entry.fail(fmt.Errorf("watch %s: %w", f.entry.ref, err))
	}
	return list, err
}

// watch opens a watch. One that goes on from a version is only opened if the last
// one lived as long as it was to: behind a broken connection there may be an API
// that was restored from a backup, and would not say that it is yet to give that
// version. So the object is listed anew, which costs no more.
func (f *follower) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	goesOn := options.SendInitialEvents == nil
	if goesOn && !f.until.IsZero() && time.Now().Before(f.until) {
		f.until = time.Time{}
		return nil, apierrors.NewResourceExpired("the connection broke, so the object is listed again")
	}
	options.FieldSelector = f.selector
	life := watchLife
	if options.TimeoutSeconds != nil {
		life = time.Duration(*options.TimeoutSeconds) * time.Second
	}
	f.until = time.Now().Add(life)
	w, err := f.open(ctx, options, life+watchGrace)
	if err != nil && ctx.Err() == nil && (willRetryWatch(err) || errors.Is(err, errNoAnswer)) {
		f.entry.fail(fmt.Errorf("watch %s: %w", f.entry.ref, err))
	}
	return w, err
}

// open opens a watch that ends by itself after a time, should the server never end
// it.
func (f *follower) open(ctx context.Context, options metav1.ListOptions, limit time.Duration) (watch.Interface, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	silent := time.AfterFunc(answerTimeout, func() { cancel(errNoAnswer) })
	w, err := f.resource.watch(ctx, f.clientset, f.entry.ref.Namespace, options)
	silent.Stop()
	if err != nil {
		if errors.Is(context.Cause(ctx), errNoAnswer) {
			err = fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		cancel(nil)
		return nil, err
	}
	return &limitedWatch{Interface: w, cancel: cancel, end: time.AfterFunc(limit, func() { cancel(errNoAnswer) })}, nil
}

// limitedWatch ends what limits a watch with it.
type limitedWatch struct {
	watch.Interface
	cancel context.CancelCauseFunc
	end    *time.Timer
}

func (w *limitedWatch) Stop() {
	w.end.Stop()
	w.Interface.Stop()
	w.cancel(nil)
}
