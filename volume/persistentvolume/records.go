package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/flight"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// RecordedObjects are the objects of a store that forgets, as the in-memory one
// does, with claims and PersistentVolumes that are never forgotten: each of them
// is on disk, whole, from its creation to its deletion, and a change of one is on
// disk before the store shows it. So they are what a cluster's API is: manifests
// are applied to them, and what a manifest does not say any more is not thereby
// gone. Objects of other kinds are in memory alone.
//
// Everybody must write claims and volumes through it, and nobody to the store
// itself. All methods are safe for concurrent use.
type RecordedObjects struct {
	Objects
	dir  string
	lock *os.File
	keys keylock.Map[volume.ObjectRef]

	mu      sync.Mutex
	closed  bool
	writing sync.WaitGroup
}

// LoadableObjects is a store that forgets, for [OpenRecords] to fill.
type LoadableObjects interface {
	Objects
	objects.Loader
}

var _ objects.Cached = (*RecordedObjects)(nil)

// OpenRecords locks the directory, waiting for who has it no longer than ctx,
// and loads all claims and volumes that are recorded there into the store, which
// must have none yet; as they were, with new resourceVersions that are higher
// than all that were ever given. The directory is made where it is missing
// (0700). A file that cannot be understood is a *[DamagedRecordError] and nothing
// is loaded: guessing could show data to another claim. It ends with
// [RecordedObjects.Close].
func OpenRecords(ctx context.Context, store LoadableObjects, dir string) (*RecordedObjects, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("records of volumes: %w", err)
	}
	lock, err := lockDir(ctx, new(flight.Group[string]), dir)
	if err != nil {
		return nil, fmt.Errorf("records of volumes %s: lock: %w", dir, err)
	}
	r := &RecordedObjects{Objects: store, dir: dir, lock: lock}
	if err := r.load(ctx, store); err != nil {
		return nil, errors.Join(fmt.Errorf("records of volumes: %w", err), r.Close())
	}
	return r, nil
}

// load reads all records and has the store show them.
func (r *RecordedObjects) load(ctx context.Context, store objects.Loader) error {
	if _, err := durable.Sweep(r.dir); err != nil {
		return err
	}
	floor, err := beginEpoch(r.dir)
	if err != nil {
		return err
	}
	claims, volumes, err := ReadRecords(r.dir)
	if err != nil {
		return err
	}
	all := make([]metav1.Object, 0, len(claims)+len(volumes))
	for _, pv := range volumes {
		all = append(all, pv)
	}
	for _, claim := range claims {
		all = append(all, claim)
	}
	return store.Load(ctx, floor, all...)
}

// Close lets another process have the records, once all that is being written
// is. What is to be written later is refused ([os.ErrClosed]).
func (r *RecordedObjects) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.writing.Wait()
	return r.lock.Close()
}

// begin lets a write of an object begin, until end is called.
func (r *RecordedObjects) begin(ctx context.Context, ref volume.ObjectRef) (end func(), err error) {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil, fmt.Errorf("write %s: the records %s: %w", ref, r.dir, os.ErrClosed)
	}
	r.writing.Add(1)
	r.mu.Unlock()
	unlock, err := r.keys.Lock(ctx, ref)
	if err != nil {
		r.writing.Done()
		return nil, err
	}
	return func() { unlock(); r.writing.Done() }, nil
}

// Live implements [objects.Cached].
func (r *RecordedObjects) Live() objects.Reader { return objects.Live(r.Objects) }

// Create implements [objects.Writer].
func (r *RecordedObjects) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	ref, recorded := refOfRecorded(object)
	if !recorded {
		return r.Objects.Create(ctx, object)
	}
	end, err := r.begin(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer end()
	rehearsal, err := r.rehearse(ctx, ref)
	if err != nil {
		return nil, err
	}
	created, err := rehearsal.store.Create(ctx, object)
	if err != nil {
		return nil, err
	}
	if err := saveRecord(r.dir, created); err != nil {
		return nil, err
	}
	created.SetResourceVersion("")
	return r.perform(ctx, ref, func(ctx context.Context) (metav1.Object, error) { return r.Objects.Create(ctx, created) })
}

// Update implements [objects.Writer].
func (r *RecordedObjects) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return r.update(ctx, object, objects.Writer.Update)
}

// UpdateStatus implements [objects.Writer].
func (r *RecordedObjects) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return r.update(ctx, object, objects.Writer.UpdateStatus)
}

func (r *RecordedObjects) update(ctx context.Context, object metav1.Object,
	verb func(objects.Writer, context.Context, metav1.Object) (metav1.Object, error)) (metav1.Object, error) {
	ref, recorded := refOfRecorded(object)
	if !recorded {
		return verb(r.Objects, ctx, object)
	}
	end, err := r.begin(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer end()
	rehearsal, err := r.rehearse(ctx, ref)
	if err != nil {
		return nil, err
	}
	if err := rehearsal.expect(object.GetResourceVersion()); err != nil {
		return nil, err
	}
	next, err := verb(rehearsal.store, ctx, withVersion(object, ""))
	if err != nil {
		return nil, err
	}
	switch {
	case isGone(next):
		err = removeRecord(r.dir, ref)
	case next.GetResourceVersion() != rehearsal.rehearsed:
		err = saveRecord(r.dir, next)
	}
	if err != nil {
		return nil, err
	}
	based := withVersion(object, rehearsal.version)
	return r.perform(ctx, ref, func(ctx context.Context) (metav1.Object, error) { return verb(r.Objects, ctx, based) })
}

// Delete implements [objects.Writer].
func (r *RecordedObjects) Delete(ctx context.Context, ref volume.ObjectRef, preconditions objects.Preconditions) error {
	if !isRecorded(ref.Kind) {
		return r.Objects.Delete(ctx, ref, preconditions)
	}
	end, err := r.begin(ctx, ref)
	if err != nil {
		return err
	}
	defer end()
	rehearsal, err := r.rehearse(ctx, ref)
	if err != nil {
		return err
	}
	if err := rehearsal.expect(preconditions.ResourceVersion); err != nil {
		return err
	}
	if err := rehearsal.store.Delete(ctx, ref, objects.Preconditions{UID: preconditions.UID}); err != nil {
		return err
	}
	next, err := rehearsal.store.Get(ctx, ref)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		err = removeRecord(r.dir, ref)
	case err == nil && next.GetResourceVersion() != rehearsal.rehearsed:
		err = saveRecord(r.dir, next)
	}
	if err != nil {
		return err
	}
	_, err = r.perform(ctx, ref, func(ctx context.Context) (metav1.Object, error) {
		return nil, r.Objects.Delete(ctx, ref, objects.Preconditions{UID: preconditions.UID, ResourceVersion: rehearsal.version})
	})
	return err
}

// rehearsal is a store with one object as it is, in which a write shows what it
// will make of it.
type rehearsal struct {
	ref   volume.ObjectRef
	store *objects.Store
	// version is the object's, rehearsed the one that it has in the rehearsal;
	// empty where there is no object.
	version, rehearsed string
}

func (r *RecordedObjects) rehearse(ctx context.Context, ref volume.ObjectRef) (rehearsal, error) {
	re := rehearsal{ref: ref, store: objects.NewStore()}
	stored, err := r.Live().Get(ctx, ref)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return re, nil
	case err != nil:
		return re, err
	}
	if err := re.store.Load(ctx, 0, stored); err != nil {
		return re, err
	}
	loaded, err := re.store.Get(ctx, ref)
	if err != nil {
		return re, err
	}
	re.version, re.rehearsed = stored.GetResourceVersion(), loaded.GetResourceVersion()
	return re, nil
}

// expect refuses a write that is based on another version.
func (re *rehearsal) expect(version string) error {
	if version != "" && re.version != "" && version != re.version {
		return fmt.Errorf("write %s: %w: it is at version %s, not %s", re.ref, objects.ErrConflict, re.version, version)
	}
	return nil
}

// perform does what is recorded, whether or not anybody waits for it any more,
// and takes the record back if that fails.
func (r *RecordedObjects) perform(ctx context.Context, ref volume.ObjectRef, do func(context.Context) (metav1.Object, error)) (metav1.Object, error) {
	ctx = context.WithoutCancel(ctx)
	written, err := do(ctx)
	if err == nil {
		return written, nil
	}
	stored, getErr := r.Live().Get(ctx, ref)
	switch {
	case errors.Is(getErr, volume.ErrNotFound):
		return nil, errors.Join(err, removeRecord(r.dir, ref))
	case getErr != nil:
		return nil, errors.Join(err, getErr)
	}
	return nil, errors.Join(err, saveRecord(r.dir, stored))
}

func withVersion(object metav1.Object, version string) metav1.Object {
	c := object.(runtime.Object).DeepCopyObject().(metav1.Object)
	c.SetResourceVersion(version)
	return c
}

func isRecorded(kind string) bool { return kind == kindClaim || kind == kindVolume }

func refOfRecorded(object metav1.Object) (volume.ObjectRef, bool) {
	switch object.(type) {
	case *v1.PersistentVolumeClaim:
		return claimRef(types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}), true
	case *v1.PersistentVolume:
		return volumeRef(object.GetName()), true
	}
	return volume.ObjectRef{}, false
}
