package persisted

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/seal"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// Disk changes the directory of records. Each change is durable, and done as a whole or
// not at all. Tests have disks that fail ([OpenOn]).
type Disk interface {
	WriteFile(path string, data []byte, perm fs.FileMode) error
	Remove(path string) error
}

// DurableDisk is the [Disk] that [Open] uses.
type DurableDisk struct{}

// WriteFile implements [Disk].
func (DurableDisk) WriteFile(path string, data []byte, perm fs.FileMode) error {
	return durable.WriteFile(path, data, perm)
}

// Remove implements [Disk].
func (DurableDisk) Remove(path string) error { return durable.Remove(path) }

// schemaVersion is the schema of the files of [Store]. All have a checksum.
const schemaVersion = 2

// record is one file.
type record struct {
	SchemaVersion int                       `json:"schemaVersion"`
	Claim         *v1.PersistentVolumeClaim `json:"claim,omitempty"`
	Volume        *v1.PersistentVolume      `json:"volume,omitempty"`
	Deleted       *deletedClaim             `json:"deleted,omitempty"`
}

// DamagedError says that a file cannot be understood that says which claim
// has which volume.
type DamagedError struct {
	Path string
	Err  error
}

func (e *DamagedError) Error() string {
	return fmt.Sprintf("%s cannot be understood: %v; restore it, or, if its volume is not needed, remove it: "+
		"until then nothing is bound, so that no claim is shown another's data", e.Path, e.Err)
}

// Unwrap returns Err.
func (e *DamagedError) Unwrap() error { return e.Err }

// Read returns the claims and volumes that are recorded in a directory,
// each in order of its files' names, without resourceVersions. It takes no lock
// and changes nothing: each object is as it was at one moment while ReadRecords
// ran, and not all need to be of the same moment. A missing directory has none.
// The error joins a *[DamagedError] for each file that cannot be understood;
// the others are returned besides it.
func Read(dir string) (claims []*v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume, err error) {
	claims, volumes, _, err = readRecords(dir)
	return claims, volumes, err
}

func readRecords(dir string) (claims []*v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume, deleted map[types.NamespacedName]types.UID, err error) {
	files, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil, err
	}
	deleted = make(map[types.NamespacedName]types.UID)
	var damaged []error
	for _, file := range files {
		if !isRecordFile(file.Name()) {
			continue
		}
		path := filepath.Join(dir, file.Name())
		rec, err := readRecord(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // since deleted
		case err != nil:
			damaged = append(damaged, &DamagedError{Path: path, Err: err})
		case rec.Deleted != nil:
			deleted[rec.Deleted.NamespacedName] = rec.Deleted.UID
		case rec.Claim != nil:
			claims = append(claims, rec.Claim)
		default:
			volumes = append(volumes, rec.Volume)
		}
	}
	return claims, volumes, deleted, errors.Join(damaged...)
}

func readRecord(path string) (record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return record{}, err
	}
	return parseRecord(path, data)
}

func parseRecord(path string, data []byte) (record, error) {
	var rec record
	data, err := seal.Open(data)
	if err != nil {
		return rec, err
	}
	if err := json.Unmarshal(data, &rec); err != nil {
		return rec, err
	}
	if err := checkVersion(rec.SchemaVersion); err != nil {
		return rec, err
	}
	if rec.Deleted != nil && rec.Claim == nil && rec.Volume == nil {
		if recordName(pvapi.ClaimRef(rec.Deleted.NamespacedName)) != filepath.Base(path) {
			return rec, fmt.Errorf("it is about %s", rec.Deleted.NamespacedName)
		}
		return rec, nil
	}
	if rec.Deleted != nil || (rec.Claim == nil) == (rec.Volume == nil) {
		return rec, errors.New("it is about no claim and no volume, or both")
	}
	if ref, _ := refOfRecorded(rec.object()); recordName(ref) != filepath.Base(path) {
		return rec, fmt.Errorf("it is about %s", ref)
	}
	return rec, objects.NewStore().Load(context.Background(), 0, rec.object()) // a rehearsal
}

// checkVersion refuses a file of a schema that is not known.
func checkVersion(version int) error {
	if version != schemaVersion {
		return fmt.Errorf("its schema version is %d, this program knows %d", version, schemaVersion)
	}
	return nil
}

func (r record) object() metav1.Object {
	if r.Claim != nil {
		return r.Claim
	}
	return r.Volume
}

// save writes an object down. It has no version there: that is given anew
// by each store.
func (r *Store) save(object metav1.Object) error {
	rec := record{SchemaVersion: schemaVersion}
	switch o := withVersion(object, "").(type) {
	case *v1.PersistentVolumeClaim:
		rec.Claim = o
	case *v1.PersistentVolume:
		rec.Volume = o
	}
	ref, _ := refOfRecorded(object)
	data, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	write := func() error {
		return r.disk.WriteFile(filepath.Join(r.dir, recordName(ref)), seal.Add(append(data, '\n')), 0o600)
	}
	if goes(object) {
		err = r.spare.spend(write)
	} else {
		err = write()
	}
	if err != nil {
		return fmt.Errorf("record %s: %w", ref, err)
	}
	return nil
}

func (r *Store) remove(ref volume.ObjectRef) error {
	if err := r.disk.Remove(filepath.Join(r.dir, recordName(ref))); err != nil {
		return fmt.Errorf("remove the record of %s: %w", ref, err)
	}
	return nil
}

const volumePrefix, claimPrefix = "volume~", "claim~"

func recordName(ref volume.ObjectRef) string {
	if ref.Kind == pvapi.KindClaim {
		return fileName(claimPrefix + ref.Namespace + "~" + ref.Name)
	}
	return fileName(volumePrefix + ref.Name)
}

func isRecordFile(name string) bool {
	return strings.HasSuffix(name, fileSuffix) && (strings.HasPrefix(name, volumePrefix) || strings.HasPrefix(name, claimPrefix))
}

// epochFile has the resourceVersion that no earlier store has reached.
const epochFile = "versions.json"

// epochLength is how many versions one store gives at most: at ten thousand a
// second, enough for two months; and there can be as many stores.
const epochLength = 1 << 36

type epoch struct {
	SchemaVersion int `json:"schemaVersion"`
	// Floor is what the next store begins above.
	Floor uint64 `json:"floor"`
}

// readEpoch returns the floor for this store.
func (r *Store) readEpoch() (floor uint64, err error) {
	e, err := readEpoch(filepath.Join(r.dir, epochFile))
	r.epoch = epoch{SchemaVersion: schemaVersion, Floor: e.Floor + epochLength}
	return e.Floor, err
}

// readEpoch reads the file of versions. A lower floor would have versions given again, which readers have seen
// with other contents, and a higher one leave none to give.
func readEpoch(path string) (e epoch, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return epoch{}, nil
	}
	if err != nil {
		return epoch{}, err
	}
	line, err := seal.Open(data)
	if err == nil {
		err = json.Unmarshal(line, &e)
	}
	if err == nil {
		err = checkVersion(e.SchemaVersion)
	}
	if err == nil && e.Floor > math.MaxInt64-epochLength {
		err = fmt.Errorf("its floor %d is none that was ever given", e.Floor)
	}
	if err != nil {
		return epoch{}, fmt.Errorf("%s cannot be understood: %w; remove it while nothing runs: versions of objects begin anew then", path, err)
	}
	return e, nil
}

// beginEpoch writes down where the next store begins.
func (r *Store) beginEpoch() error {
	next, err := json.Marshal(r.epoch)
	if err != nil {
		return err
	}
	if err := r.disk.WriteFile(filepath.Join(r.dir, epochFile), seal.Add(append(next, '\n')), 0o600); err != nil {
		return err
	}
	r.begun.Store(true)
	return nil
}

// ensureEpoch writes the file of versions if that failed when the records were opened:
// on a full disk records can still be read and deleted. Versions of a store that has
// written nothing may be given again.
func (r *Store) ensureEpoch(ctx context.Context, do func(write func() error) error) error {
	if r.begun.Load() {
		return nil
	}
	unlock, err := r.keys.Lock(ctx, volume.ObjectRef{Kind: epochFile})
	if err != nil {
		return err
	}
	defer unlock()
	if r.begun.Load() {
		return nil
	}
	return do(r.beginEpoch)
}

const (
	fileSuffix = ".json"
	maxFile    = 255 // bytes in a file's name
)

// fileName is a record's name where a file's name has room for it, else its
// beginning and a digest of the whole.
func fileName(name string) string {
	if len(name)+len(fileSuffix) <= maxFile {
		return name + fileSuffix
	}
	end := fmt.Sprintf("~%x%s", sha256.Sum256([]byte(name)), fileSuffix)
	return strings.ToValidUTF8(name[:maxFile-len(end)], "") + end
}
