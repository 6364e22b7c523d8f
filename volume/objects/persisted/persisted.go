// Package persisted keeps claims and PersistentVolumes on disk, under a store that
// forgets, as the in-memory one does ([Open]):
//
//   - Each of them is on disk as a whole from its creation to its deletion.
//   - A change is on disk before the store shows it.
//   - So the store is what a cluster's API is: manifests are applied to it, and an
//     object that a manifest does not name any more is still there.
//   - Objects of other kinds are in memory alone.
//   - All writes of claims and volumes go through [Store], none to the store below it.
//
// A file that is damaged or missing is told ([DamagedError], [LostClaimError], [Check]),
// and nothing is guessed: a guess could show data to another claim.
package persisted

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/filelock"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// Annotations of volumes whose claims are not there.
const (
	AwaitsClaimAnnotation = pvapi.AwaitsClaimAnnotation
	LostClaimAnnotation   = pvapi.LostClaimAnnotation
)

// Store is a store of objects whose claims and PersistentVolumes outlive the process
// ([Open]). Once its directory is removed or replaced, a write of a claim or volume has
// no effect and matches [ErrReplaced]. All methods are safe for concurrent use.
type Store struct {
	memory
	dir  string
	disk Disk
	lock *os.File
	keys keylock.Map[volume.ObjectRef]
	// epoch is written before any version is given to a write.
	epoch epoch
	begun atomic.Bool
	spare spare

	mu        sync.Mutex
	closed    bool
	uncertain error // a *UncertainError
	graves    graves
	writing   sync.WaitGroup
}

// memory is the store that shows them: unexported, so that no program writes to it past
// the disk.
type memory = objects.Client

// Loadable is a store that forgets, for [Open] to fill.
type Loadable interface {
	objects.Client
	objects.Loader
}

var _ objects.Cached = (*Store)(nil)

// Open locks the directory and loads all claims and volumes that are recorded there into
// the store, which must have none yet. They get new resourceVersions, higher than all that
// were ever given. [Store.Close] ends it.
//
//   - The directory is made where it is missing (0700). One through which another user could
//     lead this program elsewhere is a *[rootdir.Error].
//   - A file that cannot be understood is a *[DamagedError], and nothing is loaded: a guess
//     could show data to another claim.
//   - It waits for another process that has the directory no longer than ctx. A call that has
//     given up costs a thread until that process ends its hold.
func Open(ctx context.Context, store Loadable, dir string) (*Store, error) {
	return OpenOn(ctx, store, dir, DurableDisk{})
}

// OpenOn is [Open] with another disk.
func OpenOn(ctx context.Context, store Loadable, dir string, disk Disk) (*Store, error) {
	own, err := rootdir.Make(dir, 0o700)
	if err != nil {
		return nil, fmt.Errorf("records of volumes: %w", err)
	}
	defer own.Close()
	lock, err := lockDir(ctx, new(blockingcall.Group[string]), dir)
	if err != nil {
		return nil, fmt.Errorf("records of volumes %s: lock: %w", dir, err)
	}
	r := &Store{memory: store, dir: dir, disk: disk, lock: lock, spare: newSpare(dir)}
	if err := r.load(context.WithoutCancel(ctx), store); err != nil {
		return nil, errors.Join(fmt.Errorf("records of volumes: %w", err), r.Close())
	}
	return r, nil
}

// load reads all records and has the store show them.
func (r *Store) load(ctx context.Context, store objects.Loader) error {
	if _, err := durable.Sweep(r.dir); err != nil {
		return err
	}
	floor, err := r.readEpoch()
	if err != nil {
		return err
	}
	if err := r.beginEpoch(); err != nil && !isFull(err) { // then before the first write
		return err
	}
	r.spare.fill()
	claims, volumes, deleted, err := readRecords(r.dir)
	if err != nil {
		return err
	}
	r.findLost(claims, volumes, deleted)
	all := make([]metav1.Object, 0, len(claims)+len(volumes))
	for _, pv := range volumes {
		all = append(all, pv)
	}
	for _, claim := range claims {
		all = append(all, claim)
	}
	return store.Load(ctx, floor, all...)
}

// UncertainError says that a claim or volume may be recorded otherwise than it is
// shown: the disk confirmed neither a change of it nor the undoing of that. The
// error of the change matches [objects.ErrUncertain]; all later writes of claims
// and volumes are refused with the same error, and have no effect. Another Open
// goes on from the records on disk.
type UncertainError struct {
	Ref volume.ObjectRef
	Dir string
	// Err is what both attempts answered.
	Err error
}

func (e *UncertainError) Error() string {
	return fmt.Sprintf("the record of %s in %s cannot be read, so writing has stopped; repair the disk, then restart: %v", e.Ref, e.Dir, e.Err)
}

// Unwrap returns Err.
func (e *UncertainError) Unwrap() error { return e.Err }

// Close lets another process have the records, after all writes under way. Later
// writes are refused ([os.ErrClosed]); stored objects can still be read. A second
// call does nothing but return an error that matches [os.ErrClosed].
func (r *Store) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.writing.Wait()
	return filelock.Close(r.lock)
}

// begin lets a write begin, until end is called.
func (r *Store) begin(ref volume.ObjectRef) (end func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("write %s: the records %s: %w", ref, r.dir, os.ErrClosed)
	}
	if r.uncertain != nil {
		return nil, fmt.Errorf("write %s: %w", ref, r.uncertain)
	}
	if err := r.inPlace(); err != nil {
		return nil, fmt.Errorf("write %s: %w", ref, err)
	}
	r.writing.Add(1)
	return r.writing.Done, nil
}

// ErrReplaced says that the directory of records was removed or replaced since it
// was opened: its records are gone, and another process may have locked its
// successor. No claim and no volume is written until it is back.
var ErrReplaced = errors.New("the directory of records was removed or replaced after it was opened; restore it, or restart")

// inPlace looks whether the directory is the one that is locked.
func (r *Store) inPlace() error {
	is, err := durable.InPlace(r.lock, r.dir)
	if err == nil && !is {
		err = ErrReplaced
	}
	if err != nil {
		return fmt.Errorf("the records %s: %w", r.dir, err)
	}
	return nil
}

// Live implements [objects.Cached].
func (r *Store) Live() objects.Reader { return objects.Live(r.memory) }

// Create implements [objects.Writer].
func (r *Store) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return through{r, r.memory}.Create(ctx, object)
}

// Update implements [objects.Writer].
func (r *Store) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return through{r, r.memory}.Update(ctx, object)
}

// UpdateStatus implements [objects.Writer].
func (r *Store) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return through{r, r.memory}.UpdateStatus(ctx, object)
}

// writeThrough writes a claim or volume in the way that is recorded, anything else
// directly.
func (r *Store) writeThrough(ctx context.Context, object metav1.Object, direct func(context.Context, metav1.Object) (metav1.Object, error),
	recorded func(context.Context, volume.ObjectRef, metav1.Object) (metav1.Object, error)) (metav1.Object, error) {
	ref, ok := refOfRecorded(object)
	if !ok {
		return direct(ctx, object)
	}
	end, err := r.begin(ref)
	if err != nil {
		return nil, err
	}
	defer end()
	return recorded(ctx, ref, object)
}

func (t through) create(ctx context.Context, ref volume.ObjectRef, object metav1.Object) (metav1.Object, error) {
	r := t.Store
	unlock, err := r.keys.Lock(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer unlock()
	re, err := r.rehearse(ctx, ref)
	if err != nil {
		return nil, err
	}
	if object, err = r.recognise(ctx, object); err != nil {
		return nil, err
	}
	created, err := re.writer().Create(ctx, object)
	if err != nil {
		return nil, err
	}
	if err := r.record(re, created); err != nil {
		return nil, err
	}
	created.SetResourceVersion("")
	return r.perform(ctx, ref, func(ctx context.Context) (metav1.Object, error) { return t.shown.Create(ctx, created) })
}

// changing returns the way to do one kind of update.
func (t through) changing(verb update) func(context.Context, volume.ObjectRef, metav1.Object) (metav1.Object, error) {
	return func(ctx context.Context, ref volume.ObjectRef, object metav1.Object) (metav1.Object, error) {
		return t.change(ctx, ref, object, verb)
	}
}

// update is Update or UpdateStatus of a writer.
type update func(objects.Writer, context.Context, metav1.Object) (metav1.Object, error)

// change updates a recorded object.
func (t through) change(ctx context.Context, ref volume.ObjectRef, object metav1.Object, verb update) (metav1.Object, error) {
	r := t.Store
	unlock, err := r.keys.Lock(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer unlock()
	re, err := r.rehearse(ctx, ref)
	if err != nil {
		return nil, err
	}
	return t.write(ctx, re, object, verb)
}

// write does an update that was rehearsed: first on disk, then in the store.
func (t through) write(ctx context.Context, re *rehearsal, object metav1.Object, verb update) (metav1.Object, error) {
	if err := re.expect(object.GetResourceVersion()); err != nil {
		return nil, err
	}
	next, err := verb(re.writer(), ctx, withVersion(object, ""))
	if err != nil {
		return nil, err
	}
	if err := t.record(re, next); err != nil {
		return nil, err
	}
	based := withVersion(object, re.version())
	return t.perform(ctx, re.ref, func(ctx context.Context) (metav1.Object, error) { return verb(t.shown, ctx, based) })
}

// record writes the object's new record, or removes it where the object is nil.
// On an error it restores the old record as far as possible.
func (r *Store) record(re *rehearsal, next metav1.Object) error {
	err := r.tryRecord(re, next)
	if err == nil {
		if re.ref.Kind == pvapi.KindClaim && next != nil && !pvapi.IsGone(next) {
			r.noGrave(re.ref.NamespacedName)
		}
		r.clearGrave(context.Background(), re.stored, next)
	}
	if failed, ok := errors.AsType[*durable.Error](err); !ok || !failed.Replaced {
		return err
	}
	// It is there, and whether for good is not known.
	return r.takeBack(re.ref, re.stored, err)
}

// takeBack writes the stored object's record again, nil for none, after a change
// of it has failed. If that fails, too, all later writes are refused: the store
// and the disk may differ.
func (r *Store) takeBack(ref volume.ObjectRef, stored metav1.Object, failed error) error {
	var err error
	if stored == nil {
		err = r.remove(ref)
	} else {
		err = r.save(stored)
	}
	if err == nil {
		return failed
	}
	uncertain := &UncertainError{Ref: ref, Dir: r.dir, Err: errors.Join(failed, err)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.uncertain == nil {
		r.uncertain = uncertain
	}
	return fmt.Errorf("%w: %w", objects.ErrUncertain, uncertain)
}

func (r *Store) tryRecord(re *rehearsal, next metav1.Object) error {
	switch {
	case next == nil || pvapi.IsGone(next):
		return r.bury(re.ref, re.stored)
	case next.GetResourceVersion() == re.rehearsed:
		return nil // it stays as it is
	}
	return r.save(next)
}

// Delete implements [objects.Writer].
func (r *Store) Delete(ctx context.Context, ref volume.ObjectRef, preconditions objects.Preconditions) error {
	if !isRecorded(ref.Kind) {
		return r.memory.Delete(ctx, ref, preconditions)
	}
	end, err := r.begin(ref)
	if err != nil {
		return err
	}
	defer end()
	unlock, err := r.keys.Lock(ctx, ref)
	if err != nil {
		return err
	}
	defer unlock()
	re, err := r.rehearse(ctx, ref)
	if err != nil {
		return err
	}
	if err := re.expect(preconditions.ResourceVersion); err != nil {
		return err
	}
	if err := re.store.Delete(ctx, ref, objects.Preconditions{UID: preconditions.UID}); err != nil {
		return err
	}
	next, err := re.store.Get(ctx, ref)
	if err != nil && !errors.Is(err, volume.ErrNotFound) {
		return err
	}
	if err := r.record(re, next); err != nil {
		return err
	}
	_, err = r.perform(ctx, ref, func(ctx context.Context) (metav1.Object, error) {
		return nil, r.memory.Delete(ctx, ref, objects.Preconditions{UID: preconditions.UID, ResourceVersion: re.version()})
	})
	return err
}

// rehearsal is a store with one object as it is, in which a write shows what it
// will make of it.
type rehearsal struct {
	ref    volume.ObjectRef
	stored metav1.Object // nil where there is none
	store  *objects.Store
	// rehearsed is the version that the object has before the rehearsal.
	rehearsed string
}

func (r *Store) rehearse(ctx context.Context, ref volume.ObjectRef) (*rehearsal, error) {
	re := &rehearsal{ref: ref, store: objects.NewStore()}
	stored, err := r.Live().Get(ctx, ref)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return re, r.ensureEpoch(ctx, func(write func() error) error { return write() })
	case err != nil:
		return nil, err
	}
	if err := r.ensureEpoch(ctx, r.spare.spend); err != nil { // it may be to go
		return nil, err
	}
	re.stored = stored
	if err := re.store.Load(ctx, 0, stored); err != nil {
		return nil, err
	}
	loaded, err := re.store.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	re.rehearsed = loaded.GetResourceVersion()
	return re, nil
}

// writer shares memory with the object that is written: the rehearsal ends before the write.
func (re *rehearsal) writer() objects.Writer { return objects.Sharing(re.store) }

// version is the stored object's, empty where there is none.
func (re *rehearsal) version() string {
	if re.stored == nil {
		return ""
	}
	return re.stored.GetResourceVersion()
}

// expect refuses a write that is based on another version. The rehearsal refuses
// one without an object.
func (re *rehearsal) expect(version string) error {
	if is := re.version(); version != "" && is != "" && version != is {
		return fmt.Errorf("write %s: %w: it is at version %s, not %s", re.ref, objects.ErrConflict, is, version)
	}
	return nil
}

// perform makes the recorded change, whether or not the caller still waits, and
// takes the record back if that fails.
func (r *Store) perform(ctx context.Context, ref volume.ObjectRef, do func(context.Context) (metav1.Object, error)) (metav1.Object, error) {
	ctx = context.WithoutCancel(ctx)
	written, err := do(ctx)
	if err == nil {
		return written, nil
	}
	stored, getErr := r.Live().Get(ctx, ref)
	switch {
	case errors.Is(getErr, volume.ErrNotFound):
		return nil, r.takeBack(ref, nil, err)
	case getErr != nil:
		return nil, errors.Join(err, getErr)
	}
	return nil, r.takeBack(ref, stored, err)
}

// withVersion is a recorded object with another version. It shares the rest with the object, for a
// store that copies whatever it keeps, or is to share.
func withVersion(object metav1.Object, version string) metav1.Object {
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		c := *o
		c.ResourceVersion = version
		return &c
	case *v1.PersistentVolume:
		c := *o
		c.ResourceVersion = version
		return &c
	}
	return object // is not recorded: see refOfRecorded
}

func isRecorded(kind string) bool { return kind == pvapi.KindClaim || kind == pvapi.KindVolume }

func refOfRecorded(object metav1.Object) (volume.ObjectRef, bool) {
	switch object.(type) {
	case *v1.PersistentVolumeClaim:
		return pvapi.ClaimRef(types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}), true
	case *v1.PersistentVolume:
		return pvapi.VolumeRef(object.GetName()), true
	}
	return volume.ObjectRef{}, false
}
