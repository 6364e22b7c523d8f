package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/internal/watching"
)

// keyed holds what is watched object by object. An entry lives as long as it has
// watchers.
type keyed struct {
	clientset kubernetes.Interface
	wait      time.Duration
	polled    []string
	logger    klog.Logger
	running   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	entries map[volume.ObjectRef]*entry
}

func newKeyed(clientset kubernetes.Interface, config Config) *keyed {
	return &keyed{clientset: clientset, wait: config.Wait, polled: config.Polled, logger: logr.FromSlogHandler(config.Logger.Handler()), entries: make(map[volume.ObjectRef]*entry)}
}

// find returns the entry of a watched object, or nil.
func (k *keyed) find(ref volume.ObjectRef) *entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.entries[ref]
}

func (k *keyed) watch(r resource, ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func()) {
	w := watching.New(f)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return func() {}
	}
	e := k.entries[ref]
	if e == nil {
		e = k.start(r, ref)
	}
	e.watchers[w] = struct{}{}
	return func() {
		k.forget(e, w)
		w.Stop()
	}
}

// start opens the watch of an object. k is locked.
func (k *keyed) start(r resource, ref volume.ObjectRef) *entry {
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), k.logger))
	e := &entry{ref: ref, end: cancel, ended: ctx.Done(), owner: k, watchers: make(map[*watching.Watcher]struct{}), answered: make(chan struct{})}
	k.entries[ref] = e
	if slices.Contains(k.polled, ref.Kind) {
		k.running.Go(func() { e.poll(ctx, r, k.clientset) })
	} else {
		k.running.Go(func() { e.follow(ctx, r, k.clientset, k.logger) })
	}
	return e
}

func (k *keyed) forget(e *entry, w *watching.Watcher) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(e.watchers, w)
	if len(e.watchers) == 0 && k.entries[e.ref] == e {
		delete(k.entries, e.ref)
		e.end()
	}
}

// tell queues a call of everyone who watches an entry.
func (k *keyed) tell(e *entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for w := range e.watchers {
		w.Notify(e.ref)
	}
}

func (k *keyed) close() {
	watchers := k.endAll()
	k.running.Wait()
	for _, w := range watchers {
		w.Stop() // what it still has to deliver, too
	}
}

func (k *keyed) endAll() (watchers []*watching.Watcher) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.closed = true
	for ref, e := range k.entries {
		e.end()
		watchers = slices.AppendSeq(watchers, maps.Keys(e.watchers))
		clear(e.watchers)
		delete(k.entries, ref)
	}
	return watchers
}

// follow keeps an entry up to date until ctx ends. Lists, watches, their pauses
// and what to do about expired versions are client-go's reflector's.
func (e *entry) follow(ctx context.Context, r resource, clientset kubernetes.Interface, logger klog.Logger) {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, e.ref.Name).String()
	requests := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			list, err := r.list(ctx, clientset, e.ref.Namespace, options)
			if err != nil && ctx.Err() == nil {
				e.fail(fmt.Errorf("watch %s: %w", e.ref, err))
			}
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			w, err := r.watch(ctx, clientset, e.ref.Namespace, options)
			if err != nil && ctx.Err() == nil && willRetryWatch(err) {
				e.fail(fmt.Errorf("watch %s: %w", e.ref, err))
			}
			return w, err
		},
	}
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(requests, clientset), nil, e,
		cache.ReflectorOptions{Name: "podvol", TypeDescription: e.ref.Kind, Logger: &logger}).RunWithContext(ctx)
}
