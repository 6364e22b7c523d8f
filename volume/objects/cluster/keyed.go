package cluster

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// keyed holds the entries of objects that are watched one by one. An entry lives
// as long as it has watchers.
type keyed struct {
	clientset kubernetes.Interface
	wait      time.Duration
	polled    []string
	log       *slog.Logger
	running   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	entries map[volume.ObjectRef]*entry
}

func newKeyed(clientset kubernetes.Interface, config Config) *keyed {
	return &keyed{clientset: clientset, wait: config.Wait, polled: config.Polled, log: config.Logger, entries: make(map[volume.ObjectRef]*entry)}
}

// find returns the entry of a watched object, or nil.
func (k *keyed) find(ref volume.ObjectRef) *entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.entries[ref]
}

func (k *keyed) watch(r resource, ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func()) {
	w := objects.NewWatcher(f)
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
	logger := quietAtFirst(k.log)
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	e := &entry{ref: ref, end: cancel, ended: ctx.Done(), owner: k, watchers: make(map[*objects.Watcher]struct{}), answered: make(chan struct{})}
	k.entries[ref] = e
	if slices.Contains(k.polled, ref.Kind) {
		k.running.Go(func() { e.poll(ctx, r, k.clientset) })
	} else {
		k.running.Go(func() { newFollower(e, r, k.clientset, logger).Run(ctx) })
	}
	return e
}

func (k *keyed) forget(e *entry, w *objects.Watcher) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(e.watchers, w)
	if len(e.watchers) == 0 && k.entries[e.ref] == e {
		delete(k.entries, e.ref)
		e.end()
	}
}

// tell queues a call of every watcher of an entry.
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

func (k *keyed) endAll() (watchers []*objects.Watcher) {
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
