package cluster

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/following"
	"github.com/podvol/podvol/volume/objects"
)

// sharedKind answers for one kind from the caller's informer, with a single
// handler there.
type sharedKind struct {
	kind         string
	informer     cache.SharedIndexInformer
	registration cache.ResourceEventHandlerRegistration
	synced       <-chan struct{} // closed once it is
	closed       chan struct{}
	done         sync.WaitGroup

	mu       sync.Mutex
	watchers map[volume.ObjectRef]map[*objects.Watcher]struct{} // without a name: of the whole kind; nil: closed
}

func newSharedKind(kind string, informer cache.SharedIndexInformer) (*sharedKind, error) {
	s := &sharedKind{kind: kind, informer: informer, closed: make(chan struct{}), watchers: make(map[volume.ObjectRef]map[*objects.Watcher]struct{})}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: s.changed,
		UpdateFunc: func(old, object any) {
			if !sameVersion(old, object) { // a resync is no change
				s.changed(object)
			}
		},
		DeleteFunc: s.changed,
	})
	if err != nil {
		return nil, fmt.Errorf("watch kind %s: %w", kind, err)
	}
	s.registration, s.synced = registration, following.Synced(registration, s.closed)
	s.done.Go(s.tellOfSync)
	return s, nil
}

// tellOfSync notifies the watchers of objects whose state was not known, so that
// they read again.
func (s *sharedKind) tellOfSync() {
	select {
	case <-s.synced:
	case <-s.closed:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref := range s.watchers {
		if ref.Name != "" {
			s.tell(ref, ref)
		}
	}
}

// notSynced names possible causes. An informer that was never started looks like
// one that has no answer yet, or may not list its kind.
func (s *sharedKind) notSynced() error {
	return fmt.Errorf("the informer of kind %s is %w: it must have been started after FromInformers; if it was, it waits for the API, or for the right to list and watch that kind", s.kind, objects.ErrNotSynced)
}

func (s *sharedKind) close() {
	close(s.closed)
	s.done.Wait()
	_ = s.informer.RemoveEventHandler(s.registration) // fails only for another informer's
	for _, w := range s.takeWatchers() {
		w.Stop() // what it still has to deliver, too
	}
}

// takeWatchers removes all watchers, and allows no new ones.
func (s *sharedKind) takeWatchers() (all []*objects.Watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, watchers := range s.watchers {
		all = slices.AppendSeq(all, maps.Keys(watchers))
	}
	s.watchers = nil
	return all
}

// changed receives the argument that an informer passes to handlers.
func (s *sharedKind) changed(object any) {
	key, err := cache.DeletionHandlingObjectToName(object)
	if err != nil {
		return // an informer keeps nothing without a name
	}
	ref := volume.NewObjectRef(s.kind, key.Namespace, key.Name)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell(ref, ref)
	s.tell(volume.ObjectRef{Kind: s.kind}, ref)
}

// tell only queues.
func (s *sharedKind) tell(watched, ref volume.ObjectRef) {
	for w := range s.watchers[watched] {
		w.Notify(ref)
	}
}

func (s *sharedKind) watch(ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func()) {
	w := objects.NewWatcher(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchers == nil {
		return func() {}
	}
	if s.watchers[ref] == nil {
		s.watchers[ref] = make(map[*objects.Watcher]struct{})
	}
	s.watchers[ref][w] = struct{}{}
	return func() {
		s.forget(ref, w)
		w.Stop()
	}
}

func (s *sharedKind) forget(ref volume.ObjectRef, w *objects.Watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers[ref], w)
	if len(s.watchers[ref]) == 0 {
		delete(s.watchers, ref)
	}
}

func (s *sharedKind) get(ref volume.ObjectRef) (metav1.Object, error) {
	synced := s.informer.HasSynced() // asked first: the object may come in between
	item, exists, err := s.informer.GetIndexer().GetByKey(cache.NewObjectName(ref.Namespace, ref.Name).String())
	switch {
	case err != nil:
		return nil, fmt.Errorf("get %s: %w", ref, err)
	case exists:
		return meta.Accessor(item)
	case !synced:
		return nil, fmt.Errorf("get %s: %w", ref, s.notSynced())
	}
	return nil, &volume.ObjectNotFoundError{Ref: ref}
}

func (s *sharedKind) list(namespace string) ([]metav1.Object, error) {
	if !s.informer.HasSynced() {
		return nil, fmt.Errorf("list objects of kind %s: %w", s.kind, s.notSynced())
	}
	var all []metav1.Object
	for _, item := range s.informer.GetIndexer().List() {
		object, err := meta.Accessor(item)
		if err != nil {
			return nil, fmt.Errorf("list objects of kind %s: %w", s.kind, err)
		}
		if namespace == "" || object.GetNamespace() == namespace {
			all = append(all, object)
		}
	}
	sortByName(all)
	return all, nil
}

// sameVersion compares two states of one object.
func sameVersion(a, b any) bool {
	old, errOld := meta.Accessor(a)
	object, errNew := meta.Accessor(b)
	return errOld == nil && errNew == nil && old.GetUID() == object.GetUID() && old.GetResourceVersion() == object.GetResourceVersion() && object.GetResourceVersion() != ""
}
