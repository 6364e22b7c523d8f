package selfattach

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/util/seal"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
)

// step is how far a volume has got. Each is recorded before what it says is begun.
type step string

const (
	attaching step = "attaching"
	attached  step = "attached"
	detaching step = "detaching"
)

// recordVersion is the schema of the records.
const recordVersion = 1

// record is what is known of a volume that is attached, or may be. It holds no secret of the
// spec; Metadata is what the plugin gave, whatever that has, in a file of mode 0600.
type record struct {
	Version int                 `json:"version"`
	Volume  v1.UniqueVolumeName `json:"volume"`
	Step    step                `json:"step"`
	// Boot is the machine's boot in which the step was reached. What was attached in an
	// earlier one is attached again: another node may have had it meanwhile.
	Boot             string               `json:"boot"`
	InlineVolume     *v1.Volume           `json:"inlineVolume,omitempty"`
	PersistentVolume *v1.PersistentVolume `json:"persistentVolume,omitempty"`
	ReadOnly         bool                 `json:"readOnly,omitempty"`
	// Migrated and Inline: a PersistentVolume was translated, and is an inline volume's.
	Migrated   bool              `json:"migrated,omitempty"`
	Inline     bool              `json:"inline,omitempty"`
	DevicePath string            `json:"devicePath,omitempty"`
	Metadata   map[string]string `json:"metadata,omitempty"`
}

func newRecord(name v1.UniqueVolumeName, spec *volume.Spec, boot string) *record {
	safe := (&mountrecord.Record{InlineVolume: spec.Volume, PersistentVolume: spec.PersistentVolume}).Redacted()
	return &record{Version: recordVersion, Volume: name, Step: attaching, Boot: boot, InlineVolume: safe.InlineVolume, PersistentVolume: safe.PersistentVolume, ReadOnly: spec.ReadOnly,
		Migrated: spec.Migrated, Inline: spec.InlineVolumeSpecForCSIMigration}
}

// spec shares the record's pointers.
func (r *record) spec() *volume.Spec {
	return &volume.Spec{Volume: r.InlineVolume, PersistentVolume: r.PersistentVolume, ReadOnly: r.ReadOnly, Migrated: r.Migrated, InlineVolumeSpecForCSIMigration: r.Inline}
}

const recordSuffix = ".json"

// fileOf names the file of a volume's record.
func fileOf(name v1.UniqueVolumeName) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// records are the files in a directory.
type records struct{ dir string }

func (r records) path(name v1.UniqueVolumeName) string {
	return filepath.Join(r.dir, fileOf(name)+recordSuffix)
}

// errNewer says that a later version of this program has written a record, which only that can
// replace or remove.
var errNewer = errors.New("its record is of a later version of this program")

func (r records) checkVersion(name v1.UniqueVolumeName) error {
	if _, err := read(r.path(name)); errors.Is(err, errNewer) {
		return fmt.Errorf("%s: %w", r.path(name), err)
	}
	return nil
}

func (r records) save(of *record) error {
	if err := r.checkVersion(of.Volume); err != nil {
		return err
	}
	data, err := json.Marshal(of)
	if err != nil {
		return err
	}
	dir, err := rootdir.Make(r.dir, 0o700)
	if err != nil {
		return err
	}
	defer dir.Close()
	return durable.WriteFile(r.path(of.Volume), seal.Add(data), 0o600)
}

func (r records) remove(name v1.UniqueVolumeName) error {
	if err := r.checkVersion(name); err != nil {
		return err
	}
	return durable.Remove(r.path(name))
}

// load reads all records. damaged has those that cannot be read, by their files: they stay.
func (r records) load() (all []*record, damaged map[string]error, err error) {
	files, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	damaged = make(map[string]error)
	for _, file := range files {
		if durable.IsTemp(file.Name()) || !strings.HasSuffix(file.Name(), recordSuffix) {
			continue
		}
		path := filepath.Join(r.dir, file.Name())
		if one, err := read(path); err != nil {
			damaged[path] = err
		} else {
			all = append(all, one)
		}
	}
	return all, damaged, nil
}

func read(path string) (*record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	line, err := seal.Open(data)
	if err != nil {
		return nil, err
	}
	one := &record{}
	if err := json.Unmarshal(line, one); err != nil {
		return nil, err
	}
	switch {
	case one.Version > recordVersion:
		return nil, fmt.Errorf("%w: it is of schema version %d, and this program knows up to %d", errNewer, one.Version, recordVersion)
	case fileOf(one.Volume)+recordSuffix != filepath.Base(path), (one.InlineVolume == nil) == (one.PersistentVolume == nil):
		return nil, errors.New("it has no volume, or that of another file")
	}
	return one, nil
}
