// Package following keeps a store up to date with what a selector selects of an
// API. Lists, watches, their pauses and what to do about expired versions are
// client-go's reflector's, which makes one call after the other.
package following

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// AnswerTimeout is how long a request may go without an answer before it is
	// given up, should the connection not notice by itself. Client-go waits within a
	// request for as long as a busy API asks it to.
	AnswerTimeout = 5 * time.Minute
	// watchLife is how long a watch that the server sets no end lives, and watchGrace
	// how long it may outlive the end that it was to set.
	watchLife  = 10 * time.Minute
	watchGrace = time.Minute
)

// ErrNoAnswer is the cause that ends a request after [AnswerTimeout].
var ErrNoAnswer = fmt.Errorf("the API has not answered within %s", AnswerTimeout)

// Follower follows the objects of one kind.
type Follower struct {
	Kind      string
	Clientset kubernetes.Interface
	Logger    klog.Logger
	// Selector selects them; nil: all.
	Selector fields.Selector
	List     func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch    func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Failed is told why nothing may be known; it is tried again.
	Failed func(error)
	// Store takes the objects seen.
	Store cache.ReflectorStore
}

// Run follows until ctx ends.
func (f *Follower) Run(ctx context.Context) {
	run := &run{Follower: f}
	requests := &cache.ListWatch{ListWithContextFunc: run.list, WatchFuncWithContext: run.watch}
	cache.NewReflectorWithOptions(listWatch{requests, f.Clientset}, nil, f.Store, reflectorOptions(f.Kind, &f.Logger)).RunWithContext(ctx)
}

type run struct {
	*Follower
	// until is when the last watch was to end; zero: there was none since the list.
	until time.Time
}

func (r *run) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	r.until = time.Time{}
	r.restrict(&options)
	limited, cancel := context.WithTimeoutCause(ctx, AnswerTimeout, ErrNoAnswer)
	defer cancel()
	list, err := r.List(limited, options)
	if err != nil && ctx.Err() == nil {
		r.Failed(err)
	}
	return list, err
}

func (r *run) restrict(options *metav1.ListOptions) {
	if r.Selector != nil {
		options.FieldSelector = r.Selector.String()
	}
}

// watch opens a watch. One that goes on from a version is only opened if the last
// one lived its full time. Behind a broken connection there may be an API that
// was restored from a backup. It would not say that it has not given that version
// yet. So the objects are listed anew, which costs no more.
func (r *run) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	goesOn := options.SendInitialEvents == nil
	if goesOn && !r.until.IsZero() && time.Now().Before(r.until) {
		r.until = time.Time{}
		return nil, apierrors.NewResourceExpired("the connection broke, so it is listed again")
	}
	r.restrict(&options)
	life := watchLife
	if options.TimeoutSeconds != nil {
		life = time.Duration(*options.TimeoutSeconds) * time.Second
	}
	r.until = time.Now().Add(life)
	w, err := r.open(ctx, options, life+watchGrace)
	if err != nil && ctx.Err() == nil && (willRetryWatch(err) || errors.Is(err, ErrNoAnswer)) {
		r.Failed(err)
	}
	return w, err
}

// open opens a watch that ends by itself after a time, should the server never end
// it.
func (r *run) open(ctx context.Context, options metav1.ListOptions, limit time.Duration) (watch.Interface, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	silent := time.AfterFunc(AnswerTimeout, func() { cancel(ErrNoAnswer) })
	w, err := r.Watch(ctx, options)
	silent.Stop()
	if err != nil {
		if errors.Is(context.Cause(ctx), ErrNoAnswer) {
			err = fmt.Errorf("%w: %w", ErrNoAnswer, err)
		}
		cancel(nil)
		return nil, err
	}
	return &limitedWatch{Interface: w, cancel: cancel, end: time.AfterFunc(limit, func() { cancel(ErrNoAnswer) })}, nil
}

// willRetryWatch reports whether the reflector tries again to open a watch that
// failed so. After other failures it lists, and the list's failure is what counts.
func willRetryWatch(err error) bool {
	return apierrors.IsTooManyRequests(err) || utilnet.IsConnectionRefused(err)
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
