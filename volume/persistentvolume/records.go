package persistentvolume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/flight"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// recordVersion is the schema of the files of [RecordedObjects].
const recordVersion = 1

// RecordedObjects are the objects of a store that forgets, as the in-memory one
// does, for a [Controller] that must not: what it writes about claims and
// PersistentVolumes is on disk before the store shows it. [OpenRecords] puts
// it back into the next store before anybody is matched, so that a claim keeps
// its volume, nobody else gets it, and what was made is deleted one day.
//
// Writes of others go to the store itself and are not recorded; of the objects
// that manifests declare, only what a controller writes is. All methods are safe
// for concurrent use.
type RecordedObjects struct {
	Objects
	dir  string
	lock *os.File
	keys keylock.Map[volume.ObjectRef]
}

var _ objects.Cached = (*RecordedObjects)(nil)

// record is one file.
type record struct {
	SchemaVersion int                       `json:"schemaVersion"`
	Claim         *v1.PersistentVolumeClaim `json:"claim,omitempty"`
	Volume        *v1.PersistentVolume      `json:"volume,omitempty"`
}

// OpenRecords locks the directory, waiting for who has it no longer than ctx,
// and puts what is recorded there into the store, which must have all that
// manifests declare: the bindings of claims and volumes that are still declared,
// and the volumes that were made for claims. It is made where it is missing
// (0700). A file that cannot be understood is an error: guessing could show data
// to another claim.
func OpenRecords(ctx context.Context, store Objects, dir string) (*RecordedObjects, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("records of volumes: %w", err)
	}
	lock, err := lockDir(ctx, new(flight.Group[string]), dir)
	if err != nil {
		return nil, fmt.Errorf("records of volumes %s: lock: %w", dir, err)
	}
	r := &RecordedObjects{Objects: store, dir: dir, lock: lock}
	if err := r.restore(ctx); err != nil {
		r.Close()
		return nil, fmt.Errorf("records of volumes: %w", err)
	}
	return r, nil
}

// Close lets another process have the records. Nothing must be written any more.
func (r *RecordedObjects) Close() error { return r.lock.Close() }

// Live implements [objects.Cached].
func (r *RecordedObjects) Live() objects.Reader { return objects.Live(r.Objects) }

// Create implements [objects.Writer].
func (r *RecordedObjects) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return r.write(ctx, object, r.Objects.Create, func(metav1.Object) metav1.Object { return object })
}

// Update implements [objects.Writer].
func (r *RecordedObjects) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return r.write(ctx, object, r.Objects.Update, func(stored metav1.Object) metav1.Object { return withStatus(object, stored) })
}

// UpdateStatus implements [objects.Writer].
func (r *RecordedObjects) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return r.write(ctx, object, r.Objects.UpdateStatus, func(stored metav1.Object) metav1.Object { return withStatus(stored, object) })
}

// Delete implements [objects.Writer].
func (r *RecordedObjects) Delete(ctx context.Context, ref volume.ObjectRef, preconditions objects.Preconditions) error {
	if !isRecorded(ref.Kind) {
		return r.Objects.Delete(ctx, ref, preconditions)
	}
	unlock, err := r.keys.Lock(ctx, ref)
	if err != nil {
		return err
	}
	defer unlock()
	if err := r.Objects.Delete(ctx, ref, preconditions); err != nil {
		return err
	}
	return r.follow(ctx, ref)
}

// write records what a write will make of an object, then writes it, and takes
// the record back if that was refused. Next is called with what is stored, if
// anything is.
func (r *RecordedObjects) write(ctx context.Context, object metav1.Object, f func(context.Context, metav1.Object) (metav1.Object, error),
	next func(stored metav1.Object) metav1.Object) (metav1.Object, error) {
	ref, recorded := refOfRecorded(object)
	if !recorded {
		return f(ctx, object)
	}
	unlock, err := r.keys.Lock(ctx, ref)
	if err != nil {
		return nil, err
	}
	defer unlock()
	stored, err := r.Live().Get(ctx, ref)
	switch {
	case err != nil && !errors.Is(err, volume.ErrNotFound):
		return nil, err
	case stored != nil && stored.GetResourceVersion() != object.GetResourceVersion(), stored == nil && object.GetResourceVersion() != "":
		return f(ctx, object) // which refuses it
	}
	if err := r.save(ref, next(stored)); err != nil {
		return nil, err
	}
	written, err := f(ctx, object)
	if err != nil || isGone(written) {
		return written, errors.Join(err, r.follow(ctx, ref))
	}
	return written, nil
}

// follow makes the record that of what is stored.
func (r *RecordedObjects) follow(ctx context.Context, ref volume.ObjectRef) error {
	stored, err := r.Live().Get(ctx, ref)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return durable.Remove(r.path(ref))
	case err != nil:
		return err
	}
	return r.save(ref, stored)
}

func (r *RecordedObjects) save(ref volume.ObjectRef, object metav1.Object) error {
	var rec record
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		rec.Claim = o
	case *v1.PersistentVolume:
		rec.Volume = o
	}
	rec.SchemaVersion = recordVersion
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(r.path(ref), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("record %s: %w", ref, err)
	}
	return nil
}

func (r *RecordedObjects) path(ref volume.ObjectRef) string {
	name := "volume~" + ref.Name
	if ref.Kind == kindClaim {
		name = "claim~" + ref.Namespace + "~" + ref.Name
	}
	return filepath.Join(r.dir, fileName(name))
}

// load reads all records.
func (r *RecordedObjects) load() (claims []*v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume, err error) {
	if _, err := durable.Sweep(r.dir); err != nil {
		return nil, nil, err
	}
	files, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), fileSuffix) {
			continue
		}
		path := filepath.Join(r.dir, file.Name())
		rec, err := readRecord(path)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w; nothing is bound until it is put right, so that no claim is shown another's data", path, err)
		}
		if rec.Claim != nil {
			claims = append(claims, rec.Claim)
		} else {
			volumes = append(volumes, rec.Volume)
		}
	}
	return claims, volumes, nil
}

func readRecord(path string) (record, error) {
	var rec record
	data, err := os.ReadFile(path)
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		return rec, err
	}
	if rec.SchemaVersion != recordVersion {
		return rec, fmt.Errorf("its schema version is %d, this program knows %d", rec.SchemaVersion, recordVersion)
	}
	if (rec.Claim == nil) == (rec.Volume == nil) {
		return rec, errors.New("it is about no claim and no volume, or both")
	}
	return rec, nil
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

// withStatus returns an object with another's status, where there is another.
func withStatus(object, other metav1.Object) metav1.Object {
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		if status, ok := other.(*v1.PersistentVolumeClaim); ok {
			o = o.DeepCopy()
			o.Status = *status.Status.DeepCopy()
			return o
		}
	case *v1.PersistentVolume:
		if status, ok := other.(*v1.PersistentVolume); ok {
			o = o.DeepCopy()
			o.Status = *status.Status.DeepCopy()
			return o
		}
	}
	return object
}
