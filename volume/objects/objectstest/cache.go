package objectstest

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// cache is the content of an informer: the objects as of its last event of them.
type cache struct {
	store *objects.Store

	mu       sync.Mutex
	known    map[volume.ObjectRef]metav1.Object
	held     map[string]int // kinds, and how often they are held
	missed   map[volume.ObjectRef]bool
	watchers map[*watcher]struct{}
}

type watcher struct {
	wants func(volume.ObjectRef) bool
	f     func(volume.ObjectRef)

	mu      sync.Mutex // held while f runs
	stopped bool
}

func (c *cache) init(store *objects.Store) {
	c.store = store
	c.known = make(map[volume.ObjectRef]metav1.Object)
	c.held, c.missed = make(map[string]int), make(map[volume.ObjectRef]bool)
	c.watchers = make(map[*watcher]struct{})
}

// fill reads all stored objects.
func (c *cache) fill() {
	for _, kind := range objects.Kinds() {
		list, _ := c.store.List(context.Background(), kind.Kind, "") // it knows its own kinds
		for _, object := range list {
			c.changed(refOf(object))
		}
	}
}

// changed is called when the store has changed an object.
func (c *cache) changed(ref volume.ObjectRef) {
	for _, w := range c.learn(ref) {
		w.tell(ref)
	}
}

// learn takes the stored object over and returns the watchers to notify.
func (c *cache) learn(ref volume.ObjectRef) (told []*watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[ref.Kind] > 0 {
		c.missed[ref] = true
		return nil
	}
	object, err := c.store.Get(context.Background(), ref)
	switch {
	case err == nil:
		c.known[ref] = object
	case errors.Is(err, volume.ErrNotFound):
		delete(c.known, ref)
	}
	for w := range c.watchers {
		if w.wants(ref) {
			told = append(told, w)
		}
	}
	return told
}

// Hold implements view.
func (c *cache) Hold(kind string) (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[kind]++
	return sync.OnceFunc(func() {
		for _, ref := range c.unhold(kind) {
			c.changed(ref)
		}
	})
}

func (c *cache) unhold(kind string) (missed []volume.ObjectRef) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.held[kind]--; c.held[kind] > 0 {
		return nil
	}
	for ref := range c.missed {
		if ref.Kind == kind {
			missed = append(missed, ref)
			delete(c.missed, ref)
		}
	}
	return missed
}

// Get implements [objects.Source].
func (c *cache) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if object, ok := c.known[ref]; ok {
		return object, nil
	}
	if err := checkKind(ref.Kind); err != nil {
		return nil, err
	}
	return nil, &volume.ObjectNotFoundError{Ref: ref}
}

// List implements [objects.Lister].
func (c *cache) List(ctx context.Context, kind, namespace string) ([]metav1.Object, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := checkKind(kind); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []metav1.Object
	for ref, object := range c.known {
		if ref.Kind == kind && (namespace == "" || ref.Namespace == namespace) {
			list = append(list, object)
		}
	}
	slices.SortFunc(list, func(a, b metav1.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return list, nil
}

// Watch implements [objects.Source].
func (c *cache) Watch(ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func()) {
	return c.watch(func(changed volume.ObjectRef) bool { return changed == ref }, f)
}

// WatchKind implements [objects.Lister].
func (c *cache) WatchKind(kind string, f func(volume.ObjectRef)) (stop func()) {
	return c.watch(func(changed volume.ObjectRef) bool { return changed.Kind == kind }, f)
}

func (c *cache) watch(wants func(volume.ObjectRef) bool, f func(volume.ObjectRef)) (stop func()) {
	w := &watcher{wants: wants, f: f}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchers[w] = struct{}{}
	return func() {
		c.forget(w)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stopped = true
	}
}

func (c *cache) forget(w *watcher) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.watchers, w)
}

func (w *watcher) tell(ref volume.ObjectRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.stopped {
		w.f(ref)
	}
}

// checkKind refuses a kind that the store does not keep, as the store does.
func checkKind(kind string) error {
	if slices.ContainsFunc(objects.Kinds(), func(k objects.Kind) bool { return k.Kind == kind }) {
		return nil
	}
	return &objects.UnknownKindError{Kind: kind}
}

// refOf names an object by its Go type, whose name is the kind's.
func refOf(object metav1.Object) volume.ObjectRef {
	return volume.NewObjectRef(reflect.TypeOf(object).Elem().Name(), object.GetNamespace(), object.GetName())
}
