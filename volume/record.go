package volume

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// RecordVersion is the schema version that [EncodeRecord] writes.
const RecordVersion = 1

// Record is what is written down about a volume before it is mounted, so that
// a restarted node knows what is mounted, for whom, and how to undo it. It
// holds no secrets.
type Record struct {
	// PodUID, Pod and Volume say whose it is: Volume is the volume's name in
	// the pod, which differs from the spec's name for claims.
	PodUID types.UID            `json:"podUID"`
	Pod    types.NamespacedName `json:"pod"`
	Volume string               `json:"volume"`
	// Plugin is the plugin's name.
	Plugin string `json:"plugin"`
	// Path is where the pod's containers find the volume.
	Path string `json:"path"`
	// Source describes the data's origin, for people.
	Source string `json:"source,omitempty"`
	// Options are the mount options without secrets.
	Options []string `json:"options,omitempty"`
	// The spec: either of the two, and the pod's wish for read-only.
	InlineVolume     *v1.Volume           `json:"inlineVolume,omitempty"`
	PersistentVolume *v1.PersistentVolume `json:"persistentVolume,omitempty"`
	ReadOnly         bool                 `json:"readOnly,omitempty"`
}

// Spec returns the recorded spec; it shares the record's pointers.
func (r *Record) Spec() *Spec {
	return &Spec{Volume: r.InlineVolume, PersistentVolume: r.PersistentVolume, ReadOnly: r.ReadOnly}
}

// ErrRecordDamaged says that a record is truncated, altered or none at all.
var ErrRecordDamaged = errors.New("the volume record is damaged")

// RecordVersionError says that a record was written by a newer podvol.
type RecordVersionError struct{ Version, Supported int }

func (e *RecordVersionError) Error() string {
	return fmt.Sprintf("the volume record has schema version %d, this podvol reads up to %d; use the newer podvol that wrote it", e.Version, e.Supported)
}

// envelope is a record on disk: the checksum tells a truncated or altered
// record from a whole one, the version comes first so that every version can
// read it.
type envelope struct {
	Version int             `json:"version"`
	SHA256  string          `json:"sha256"`
	Record  json.RawMessage `json:"record"`
}

// EncodeRecord returns the record as one line of JSON. A record without pod
// UID, volume, plugin, path or exactly one spec is refused with an
// *[InvalidSpecError]. The record is not changed.
func EncodeRecord(r *Record) ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	body, err := json.Marshal(r.trimmed())
	if err != nil {
		return nil, fmt.Errorf("encoding the record of volume %q: %w", r.Volume, err)
	}
	whole, err := json.Marshal(envelope{Version: RecordVersion, SHA256: checksum(body), Record: body})
	return append(whole, '\n'), err
}

// DecodeRecord reads what [EncodeRecord] wrote. A newer schema is a
// *[RecordVersionError]; everything else that is wrong matches
// [ErrRecordDamaged].
func DecodeRecord(data []byte) (*Record, error) {
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrRecordDamaged, err)
	}
	if e.Version > RecordVersion {
		return nil, &RecordVersionError{Version: e.Version, Supported: RecordVersion}
	}
	if e.Version < 1 {
		return nil, fmt.Errorf("%w: schema version %d", ErrRecordDamaged, e.Version)
	}
	if checksum(e.Record) != e.SHA256 {
		return nil, fmt.Errorf("%w: its checksum does not match", ErrRecordDamaged)
	}
	decoder := json.NewDecoder(bytes.NewReader(e.Record))
	decoder.DisallowUnknownFields()
	r := &Record{}
	if err := decoder.Decode(r); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrRecordDamaged, err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecordDamaged, err)
	}
	return r, nil
}

func (r *Record) check() error {
	if err := CheckPathSegment("record's pod UID", string(r.PodUID)); err != nil {
		return err
	}
	if err := CheckPathSegment("record's volume", r.Volume); err != nil {
		return err
	}
	if err := checkPluginName(r.Plugin); err != nil {
		return err
	}
	if (r.InlineVolume == nil) == (r.PersistentVolume == nil) {
		return Invalid("record", "must hold either an inline volume or a PersistentVolume")
	}
	return CheckPathSegment("record's spec name", r.Spec().Name())
}

// trimmed leaves out what no plugin reads and what only makes records large.
func (r *Record) trimmed() *Record {
	if r.PersistentVolume == nil {
		return r
	}
	c := *r
	pv := *r.PersistentVolume
	pv.ManagedFields = nil
	c.PersistentVolume = &pv
	return &c
}

func checksum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
