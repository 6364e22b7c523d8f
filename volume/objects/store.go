package objects

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
)

// Store keeps objects in memory. It is a [Source], a [Lister] and a [Writer].
//
// Its kinds are pods, claims, PersistentVolumes, storage and volume attributes
// classes, config maps, secrets, service accounts, nodes and cluster trust
// bundles. For other kinds the error is an *[UnknownKindError].
//
// It behaves as the API does:
//
//   - Every change gets a new resourceVersion. An update without a difference is
//     no change.
//   - An object with finalizers outlives its deletion until they are gone.
//   - Stored objects carry their kind and apiVersion.
//   - A stored object is replaced and never changed. So the results of Get and
//     List stay as they were. The caller must not change them either.
//
// All methods are safe for concurrent use. Watchers are called from goroutines of
// their own, never while the store is locked. They may call the store.
type Store struct {
	mu       sync.RWMutex
	version  uint64
	objects  map[string]map[types.NamespacedName]stored
	watchers map[watchKey]map[*Watcher]struct{}
}

// watchKey is the object of a watch: one object, or with an empty name a kind.
type watchKey volume.ObjectRef

var (
	_ Source = (*Store)(nil)
	_ Lister = (*Store)(nil)
	_ Writer = (*Store)(nil)
	_ Loader = (*Store)(nil)
	_ Sharer = (*Store)(nil)
)

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{
		objects:  make(map[string]map[types.NamespacedName]stored),
		watchers: make(map[watchKey]map[*Watcher]struct{}),
	}
}

// Get implements [Source]. If the object does not exist, the error is a
// *[volume.ObjectNotFoundError].
func (s *Store) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if _, ok := kindNamed(ref.Kind); !ok {
		return nil, &UnknownKindError{Kind: ref.Kind}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if object, ok := s.objects[ref.Kind][ref.NamespacedName]; ok {
		return object, nil
	}
	return nil, &volume.ObjectNotFoundError{Ref: ref}
}

// Watch implements [Source].
func (s *Store) Watch(ref volume.ObjectRef, f func(volume.ObjectRef)) (stop func()) {
	return s.watch(watchKey(ref), f)
}

// List implements [Lister].
func (s *Store) List(ctx context.Context, kind, namespace string) ([]metav1.Object, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if _, ok := kindNamed(kind); !ok {
		return nil, &UnknownKindError{Kind: kind}
	}
	list := s.collect(kind, namespace)
	slices.SortFunc(list, func(a, b metav1.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return list, nil
}

func (s *Store) collect(kind, namespace string) []metav1.Object {
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := make([]metav1.Object, 0, len(s.objects[kind]))
	for key, object := range s.objects[kind] {
		if namespace == "" || namespace == key.Namespace {
			list = append(list, object)
		}
	}
	return list
}

// WatchKind implements [Lister].
func (s *Store) WatchKind(kind string, f func(volume.ObjectRef)) (stop func()) {
	return s.watch(watchKey{Kind: kind}, f)
}

// Create implements [Writer]. It sets a UID and a creation time if the object has
// none. A resourceVersion must not be set.
func (s *Store) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return copied(s.insert(ctx, object, clone))
}

// insert stores what take makes of an object.
func (s *Store) insert(ctx context.Context, object metav1.Object, take func(kind, metav1.Object) stored) (stored, error) {
	k, ref, err := s.admit(ctx, object)
	if err != nil {
		return nil, err
	}
	if object.GetResourceVersion() != "" {
		return nil, volume.Invalid("metadata.resourceVersion", "must not be set on %s, which is to be created", ref)
	}
	created := take(k, object)
	created.SetDeletionTimestamp(nil)
	if created.GetUID() == "" {
		created.SetUID(NewUID())
	}
	if t := created.GetCreationTimestamp(); t.IsZero() {
		created.SetCreationTimestamp(metav1.Now())
	}
	if err := s.create(ref, created); err != nil {
		return nil, err
	}
	return created, nil
}

func (s *Store) create(ref volume.ObjectRef, created stored) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, exists := s.objects[ref.Kind][ref.NamespacedName]; exists {
		return fmt.Errorf("create %s: %w", ref, ErrExists)
	}
	s.put(ref, created)
	return nil
}

// Load puts objects from an earlier store into this one, unchanged, with UID,
// status and times. A deletion that waits for finalizers keeps its time, too.
//
//   - They get new resourceVersions, and so do all later changes. These are above
//     floor, and above all that this store has given before. A store that
//     continues another one so needs a floor that the other did not reach.
//   - Load puts all objects into the store or, on an error, none.
//   - If an object exists, or is given twice, the error is [ErrExists].
//   - An object without UID, or one that is deleted and has no finalizers, is
//     invalid.
//   - Load copies the objects.
func (s *Store) Load(ctx context.Context, floor uint64, all ...metav1.Object) error {
	loads := make([]load, 0, len(all))
	seen := make(map[volume.ObjectRef]bool, len(all))
	for _, object := range all {
		k, ref, err := s.admit(ctx, object)
		switch {
		case err != nil:
			return err
		case seen[ref]:
			return fmt.Errorf("load %s: %w", ref, ErrExists)
		case object.GetUID() == "":
			return volume.Invalid("metadata.uid", "%s, which is to be loaded, has none", ref)
		case object.GetDeletionTimestamp() != nil && len(object.GetFinalizers()) == 0:
			return volume.Invalid("metadata.deletionTimestamp", "%s, which is to be loaded, is deleted and has no finalizers", ref)
		}
		seen[ref] = true
		loads = append(loads, load{ref: ref, object: clone(k, object)})
	}
	return s.load(floor, loads)
}

// load is one object of [Store.Load].
type load struct {
	ref    volume.ObjectRef
	object stored
}

func (s *Store) load(floor uint64, loads []load) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range loads {
		if _, exists := s.objects[l.ref.Kind][l.ref.NamespacedName]; exists {
			return fmt.Errorf("load %s: %w", l.ref, ErrExists)
		}
	}
	s.version = max(s.version, floor)
	for _, l := range loads {
		s.put(l.ref, l.object)
	}
	return nil
}

// Update implements [Writer]. UID, creation and deletion time stay as they
// are. An object that is being deleted can lose finalizers but gain none; with
// the last it is gone, and Update returns its last state.
func (s *Store) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return copied(s.replace(ctx, object, cloneWithoutStatus))
}

// replace stores what take makes of an object, with the status that is stored.
func (s *Store) replace(ctx context.Context, object metav1.Object, take func(kind, metav1.Object) stored) (stored, error) {
	k, ref, err := s.admit(ctx, object)
	if err != nil {
		return nil, err
	}
	return s.update(k, ref, take(k, object), Preconditions{UID: object.GetUID(), ResourceVersion: object.GetResourceVersion()})
}

// update stores next, whose status does not count. It returns the stored object, or its last
// state if it is gone.
func (s *Store) update(k kind, ref volume.ObjectRef, next stored, p Preconditions) (stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.expect(ref, p)
	if err != nil {
		return nil, fmt.Errorf("update %s: %w", ref, err)
	}
	if err := checkFinalizers(old, next); err != nil {
		return nil, err
	}
	if k.status != nil {
		k.status.share(next, old)
	}
	inheritIdentity(next, old)
	if next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0 {
		s.remove(ref)
		return next, nil
	}
	next.SetResourceVersion(old.GetResourceVersion())
	if !isPlainlyOther(old, next) && equality.Semantic.DeepEqual(old, next) {
		return old, nil
	}
	s.put(ref, next)
	return next, nil
}

// UpdateStatus implements [Writer]. A kind without status is refused.
func (s *Store) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return copied(s.replaceStatus(ctx, object, func(k kind) func(stored, metav1.Object) { return k.status.copy }))
}

// replaceStatus stores an object with the status of another one, as the function of its kind
// gives it.
func (s *Store) replaceStatus(ctx context.Context, object metav1.Object, give func(kind) func(to stored, from metav1.Object)) (stored, error) {
	k, ref, err := s.admit(ctx, object)
	if err != nil {
		return nil, err
	}
	if k.status == nil {
		return nil, volume.Invalid("status", "a %s has no status", ref.Kind)
	}
	return s.updateStatus(k, ref, object, give(k))
}

func (s *Store) updateStatus(k kind, ref volume.ObjectRef, object metav1.Object, give func(to stored, from metav1.Object)) (stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.expect(ref, Preconditions{UID: object.GetUID(), ResourceVersion: object.GetResourceVersion()})
	if err != nil {
		return nil, fmt.Errorf("update the status of %s: %w", ref, err)
	}
	next := k.shallow(old)
	give(next, object)
	if k.status.equal(old, next) {
		return old, nil
	}
	s.put(ref, next)
	return next, nil
}

// Delete implements [Writer].
func (s *Store) Delete(ctx context.Context, ref volume.ObjectRef, preconditions Preconditions) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	k, ok := kindNamed(ref.Kind)
	if !ok {
		return &UnknownKindError{Kind: ref.Kind}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, err := s.expect(ref, preconditions)
	if err != nil {
		return fmt.Errorf("delete %s: %w", ref, err)
	}
	if len(old.GetFinalizers()) == 0 {
		s.remove(ref)
		return nil
	}
	if old.GetDeletionTimestamp() != nil {
		return nil
	}
	next := clone(k, old)
	now := metav1.Now()
	next.SetDeletionTimestamp(&now)
	s.put(ref, next)
	return nil
}

// admit checks everything that does not need the stored object.
func (s *Store) admit(ctx context.Context, object metav1.Object) (kind, volume.ObjectRef, error) {
	if ctx.Err() != nil {
		return kind{}, volume.ObjectRef{}, context.Cause(ctx)
	}
	return describe(object)
}

// expect returns the stored object if it meets the preconditions.
func (s *Store) expect(ref volume.ObjectRef, p Preconditions) (stored, error) {
	old, ok := s.objects[ref.Kind][ref.NamespacedName]
	switch {
	case !ok:
		return nil, &volume.ObjectNotFoundError{Ref: ref}
	case p.UID != "" && p.UID != old.GetUID():
		return nil, fmt.Errorf("%w: its UID is %q, not %q", ErrConflict, old.GetUID(), p.UID)
	case p.ResourceVersion != "" && p.ResourceVersion != old.GetResourceVersion():
		return nil, fmt.Errorf("%w: it is at version %s, not %s", ErrConflict, old.GetResourceVersion(), p.ResourceVersion)
	}
	return old, nil
}

// isPlainlyOther reports whether two versions of an object differ without a full
// comparison.
func isPlainlyOther(a, b metav1.Object) bool {
	return len(a.GetAnnotations()) != len(b.GetAnnotations()) || len(a.GetFinalizers()) != len(b.GetFinalizers()) || len(a.GetLabels()) != len(b.GetLabels())
}

// put stores an object that no caller will change any more.
func (s *Store) put(ref volume.ObjectRef, object stored) {
	s.version++
	object.SetResourceVersion(strconv.FormatUint(s.version, 10))
	if s.objects[ref.Kind] == nil {
		s.objects[ref.Kind] = make(map[types.NamespacedName]stored)
	}
	s.objects[ref.Kind][ref.NamespacedName] = object
	s.notify(ref)
}

func (s *Store) remove(ref volume.ObjectRef) {
	s.version++
	delete(s.objects[ref.Kind], ref.NamespacedName)
	s.notify(ref)
}

// notify only queues; the watchers run elsewhere.
func (s *Store) notify(ref volume.ObjectRef) {
	for w := range s.watchers[watchKey(ref)] {
		w.Notify(ref)
	}
	for w := range s.watchers[watchKey{Kind: ref.Kind}] {
		w.Notify(ref)
	}
}

func (s *Store) watch(key watchKey, f func(volume.ObjectRef)) (stop func()) {
	w := NewWatcher(f)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchers[key] == nil {
		s.watchers[key] = make(map[*Watcher]struct{})
	}
	s.watchers[key][w] = struct{}{}
	return func() {
		s.unwatch(key, w)
		w.Stop()
	}
}

func (s *Store) unwatch(key watchKey, w *Watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watchers[key], w)
	if len(s.watchers[key]) == 0 {
		delete(s.watchers, key)
	}
}

func inheritIdentity(next, old stored) {
	next.SetUID(old.GetUID())
	next.SetCreationTimestamp(old.GetCreationTimestamp())
	next.SetDeletionTimestamp(old.GetDeletionTimestamp().DeepCopy())
}

func checkFinalizers(old, next stored) error {
	if old.GetDeletionTimestamp() == nil {
		return nil
	}
	for _, f := range next.GetFinalizers() {
		if !slices.Contains(old.GetFinalizers(), f) {
			return volume.Invalid("metadata.finalizers", "%q cannot be added to an object that is being deleted", f)
		}
	}
	return nil
}

// List returns the objects of a kind as their own type, in order of namespace and
// name. An empty namespace means all. The caller must not change them. It is an
// error if kind is not T's.
func List[T metav1.Object](ctx context.Context, l KindReader, kind, namespace string) ([]T, error) {
	list, err := l.List(ctx, kind, namespace)
	if err != nil {
		return nil, err
	}
	typed := make([]T, len(list))
	for i, object := range list {
		t, ok := object.(T)
		if !ok {
			return nil, fmt.Errorf("list objects of kind %s: got a %T, want a %T", kind, object, *new(T))
		}
		typed[i] = t
	}
	return typed, nil
}

// Get returns one object as its own type; see [Source].
func Get[T metav1.Object](ctx context.Context, s Getter, ref volume.ObjectRef) (T, error) {
	var none T
	object, err := s.Get(ctx, ref)
	if err != nil {
		return none, err
	}
	t, ok := object.(T)
	if value := reflect.ValueOf(object); ok && value.Kind() == reflect.Pointer && value.IsNil() {
		return none, fmt.Errorf("get %s: got neither an object nor an error, but a %T that is nil", ref, object)
	}
	if !ok {
		return none, fmt.Errorf("get %s: got a %T, want a %T", ref, object, none)
	}
	return t, nil
}
