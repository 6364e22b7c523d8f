package volume

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/secretopt"
)

// RecordVersion is the schema version that [EncodeRecord] writes. Version 1 had
// a checksum of its own, which is passed over: whoever stores records sees to
// it that they are whole.
const RecordVersion = 2

// Record is what is written down about a volume before it is mounted, so that
// a restarted node knows what is mounted, for whom, and how to undo it. It
// holds no secrets.
type Record struct {
	// PodUID and Pod say whose it is. Volumes are its names in the pod, which
	// differ from the spec's name for claims, and are several where the pod
	// names a claim more than once.
	PodUID  types.UID            `json:"podUID"`
	Pod     types.NamespacedName `json:"pod"`
	Volumes []string             `json:"volumes"`
	// NodeName is the node that it was mounted for; empty where nobody knows: in
	// rebuilt records, and those of versions that did not write it.
	NodeName types.NodeName `json:"nodeName,omitempty"`
	// Plugin is the plugin's name.
	Plugin string `json:"plugin"`
	// Path is where the pod's containers find the volume, which is the pod's
	// link to the device for a block volume: absolute and clean, as
	// filepath.Clean makes it.
	Path string `json:"path"`
	// Source describes the data's origin, for people.
	Source string `json:"source,omitempty"`
	// SELinuxLabel is the label that its file system is mounted with; empty: none.
	SELinuxLabel string `json:"seLinuxLabel,omitempty"`
	// The spec: either of the two, and the pod's wish for read-only.
	InlineVolume     *v1.Volume           `json:"inlineVolume,omitempty"`
	PersistentVolume *v1.PersistentVolume `json:"persistentVolume,omitempty"`
	ReadOnly         bool                 `json:"readOnly,omitempty"`
	// Rebuilt says that the record was made from what was found on disk
	// (ReconstructedVolume): its volume's name in the pod is the spec's, and the
	// spec is inline even if it came from a PersistentVolume. Guessed says that
	// the source is not certain either.
	Rebuilt bool `json:"rebuilt,omitempty"`
	Guessed bool `json:"guessed,omitempty"`
	// Detached says that the volume's mount was detached while its file system
	// may have been in use; nil: not, or it was mounted again.
	Detached *Detachment `json:"detached,omitempty"`

	// Confirmed is nil until the volume is known to be set up. It is no part
	// of the record proper; see [EncodeConfirmation].
	Confirmed *Confirmation `json:"-"`
}

// Confirmation says that a recorded volume was set up.
type Confirmation struct {
	// At is when, Took how long it took.
	At   time.Time     `json:"at"`
	Took time.Duration `json:"took"`
	// MountPoint says whether the mount table showed a mount at the path.
	MountPoint bool `json:"mountPoint"`
	// Device is the device of a block volume; nil for file systems.
	Device *MappedDevice `json:"device,omitempty"`
}

// MappedDevice is where the device of a block volume is found.
type MappedDevice struct {
	// Node is the device's node, links resolved.
	Node string `json:"node"`
	// Bind is where that is bound for the pod below plugins/, which the mount
	// table shows while the volume is there.
	Bind string `json:"bind"`
}

// Spec returns the recorded spec; it shares the record's pointers.
func (r *Record) Spec() *Spec {
	return &Spec{Volume: r.InlineVolume, PersistentVolume: r.PersistentVolume, ReadOnly: r.ReadOnly}
}

// ErrRecordDamaged says that a record is truncated, or none at all.
var ErrRecordDamaged = errors.New("the volume record is damaged")

// RecordVersionError says that a record was written by a newer podvol.
type RecordVersionError struct{ Version, Supported int }

func (e *RecordVersionError) Error() string {
	return fmt.Sprintf("the volume record has schema version %d, this podvol reads up to %d; use the newer podvol that wrote it", e.Version, e.Supported)
}

// envelope is a record on disk. The version comes first and can be read by
// every version.
type envelope struct {
	Version int             `json:"version"`
	Record  json.RawMessage `json:"record"`
}

// EncodeRecord returns the record as JSON on one line, without a newline. A
// record without pod UID, volume, plugin, path or exactly one spec is refused
// with an *[InvalidSpecError]. The record is not changed. Nothing in it tells an
// altered record from a good one: it is to be stored with a checksum.
func EncodeRecord(r *Record) ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	body, err := json.Marshal(r.trimmed())
	if err != nil {
		return nil, fmt.Errorf("encoding the record of volume %q: %w", r.Volumes[0], err)
	}
	return json.Marshal(envelope{Version: RecordVersion, Record: body})
}

// EncodeConfirmation returns what is noted about a record once its volume is
// set up. It needs no sync: when it is lost, the volume is merely uncertain
// again.
func EncodeConfirmation(c Confirmation) ([]byte, error) { return json.Marshal(c) }

// DecodeRecord reads what [EncodeRecord] of this version or an older one wrote,
// and the confirmation that was noted about it; empty, or not to be read: none.
// A newer schema is a *[RecordVersionError]; everything else that is wrong
// matches [ErrRecordDamaged]. Fields that this version does not know are passed
// over: what it knows suffices to tear the volume down.
func DecodeRecord(record, confirmation []byte) (*Record, error) {
	var e envelope
	if err := json.Unmarshal(record, &e); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrRecordDamaged, err)
	}
	switch {
	case e.Version > RecordVersion:
		return nil, &RecordVersionError{Version: e.Version, Supported: RecordVersion}
	case e.Version < 1:
		return nil, fmt.Errorf("%w: schema version %d", ErrRecordDamaged, e.Version)
	}
	r := &Record{}
	if err := json.Unmarshal(e.Record, r); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrRecordDamaged, err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecordDamaged, err)
	}
	var c Confirmation
	if json.Unmarshal(confirmation, &c) == nil && !c.At.IsZero() {
		r.Confirmed = &c
	}
	return r, nil
}

func (r *Record) check() error {
	if err := CheckPathSegment("record's pod UID", string(r.PodUID)); err != nil {
		return err
	}
	if len(r.Volumes) == 0 {
		return Invalid("record", "must name the volume")
	}
	for _, name := range r.Volumes {
		if err := CheckPathSegment("record's volume", name); err != nil {
			return err
		}
	}
	if err := checkPluginName(r.Plugin); err != nil {
		return err
	}
	if err := checkRecordPath(r.Path); err != nil {
		return err
	}
	if (r.InlineVolume == nil) == (r.PersistentVolume == nil) {
		return Invalid("record", "must hold either an inline volume or a PersistentVolume")
	}
	return CheckPathSegment("record's spec name", r.Spec().Name())
}

func checkRecordPath(path string) error {
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return Invalid("record's path", "%q must be an absolute path without superfluous elements", path)
	case strings.ContainsRune(path, 0) || !utf8.ValidString(path): // JSON would change it
		return Invalid("record's path", "must be UTF-8 without NUL bytes: %q", path)
	}
	return nil
}

// trimmed leaves out what no plugin reads and what only makes records large, and
// the secrets among options and parameters: who mounts has them from the object.
func (r *Record) trimmed() *Record {
	c := *r
	if r.InlineVolume != nil {
		v := *r.InlineVolume
		if v.FlexVolume != nil {
			flex := *v.FlexVolume
			flex.Options, v.FlexVolume = secretopt.Parameters(flex.Options), &flex
		}
		if v.CSI != nil {
			csi := *v.CSI
			csi.VolumeAttributes, v.CSI = secretopt.Parameters(csi.VolumeAttributes), &csi
		}
		c.InlineVolume = &v
	}
	if r.PersistentVolume != nil {
		pv := *r.PersistentVolume
		pv.ManagedFields = nil
		pv.Annotations, pv.Spec.MountOptions = secretopt.Parameters(pv.Annotations), secretopt.Options(pv.Spec.MountOptions)
		if pv.Spec.FlexVolume != nil {
			flex := *pv.Spec.FlexVolume
			flex.Options, pv.Spec.FlexVolume = secretopt.Parameters(flex.Options), &flex
		}
		if pv.Spec.CSI != nil {
			csi := *pv.Spec.CSI
			csi.VolumeAttributes, pv.Spec.CSI = secretopt.Parameters(csi.VolumeAttributes), &csi
		}
		c.PersistentVolume = &pv
	}
	return &c
}
