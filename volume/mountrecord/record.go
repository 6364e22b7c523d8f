// Package mountrecord is the form in which a node keeps a mounted volume on disk: the
// volume, its pod, and how to undo the mount. [Encode] and [Decode] are its codec. The
// volume manager stores the records and keeps them whole.
package mountrecord

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/secretopt"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/lazyunmount"
)

// Version is the schema version that [Encode] writes and [Decode] reads. The store of
// the records keeps them whole.
const Version = 2

// Record describes a volume before it is mounted. With it a restarted node knows
// the volume, its pod, and how to undo the mount. It holds no secrets.
type Record struct {
	// PodUID and Pod name the volume's pod. Volumes are the volume's names in the
	// pod. They differ from the spec's name for claims. There are several if the
	// pod names a claim more than once.
	PodUID  types.UID            `json:"podUID"`
	Pod     types.NamespacedName `json:"pod"`
	Volumes []string             `json:"volumes"`
	// NodeName is the node that the volume was mounted for. It is empty in
	// rebuilt records, and in records of versions that did not write it.
	NodeName types.NodeName `json:"nodeName,omitempty"`
	// Plugin is the plugin's name.
	Plugin string `json:"plugin"`
	// Path is the path at which the pod's containers find the volume. For a block
	// volume it is the pod's link to the device. It is absolute and clean, as
	// from filepath.Clean.
	Path string `json:"path"`
	// Source is the place of the data, for people.
	Source string `json:"source,omitempty"`
	// SELinuxLabel is the SELinux label of the mount; empty: none.
	SELinuxLabel string `json:"seLinuxLabel,omitempty"`
	// The spec: one of the two, and the pod's option for read-only.
	InlineVolume     *v1.Volume           `json:"inlineVolume,omitempty"`
	PersistentVolume *v1.PersistentVolume `json:"persistentVolume,omitempty"`
	ReadOnly         bool                 `json:"readOnly,omitempty"`
	// Migrated says that the PersistentVolume was made from an in-tree source
	// (volume.Translator); without a claim, from an inline one.
	Migrated bool `json:"migrated,omitempty"`
	// Rebuilt says that the record was made from the disk (ReconstructedVolume).
	// The volume's name in the pod is then the spec's name. The spec is inline
	// even if it came from a PersistentVolume. Guessed says that the source is
	// not certain either.
	Rebuilt bool `json:"rebuilt,omitempty"`
	Guessed bool `json:"guessed,omitempty"`
	// Size is the size up to which the node has done its part when the volume grew
	// (volume.NodeExpandableVolumePlugin); nil: not known, or the node has none.
	Size *resource.Quantity `json:"size,omitempty"`
	// Detached says that the volume's mount was detached while its file system
	// may have been in use; nil: it was not detached, or it was mounted again.
	Detached *lazyunmount.Detachment `json:"detached,omitempty"`

	// Confirmed is nil until the volume is known to be set up. It is not part of
	// the record's JSON; see [EncodeConfirmation].
	Confirmed *Confirmation `json:"-"`
}

// ErrNotMountedAnymore says that a volume was mounted once, and the mount table no
// longer shows it. The machine may have restarted.
var ErrNotMountedAnymore = errors.New("it was mounted, but the mount table no longer shows it; set the pod up again")

// Confirmation says that a recorded volume was set up.
type Confirmation struct {
	// At is the end of the set-up. Took is its duration.
	At   time.Time     `json:"at"`
	Took time.Duration `json:"took"`
	// MountPoint says whether the mount table showed a mount at the path.
	MountPoint bool `json:"mountPoint"`
	// Device is the device of a block volume; nil for file systems.
	Device *MappedDevice `json:"device,omitempty"`
}

// MappedDevice is the place of a block volume's device.
type MappedDevice struct {
	// Node is the device's node, links resolved.
	Node string `json:"node"`
	// Bind is the pod's bind of the node below plugins/. The mount table shows it
	// while the volume is set up.
	Bind string `json:"bind"`
}

// Equal reports whether both are the same place, or both are nil.
func (d *MappedDevice) Equal(other *MappedDevice) bool {
	return d == other || d != nil && other != nil && *d == *other
}

// Spec returns the recorded spec. It shares the record's pointers.
func (r *Record) Spec() *volume.Spec {
	return &volume.Spec{Volume: r.InlineVolume, PersistentVolume: r.PersistentVolume, ReadOnly: r.ReadOnly, Migrated: r.Migrated, InlineVolumeSpecForCSIMigration: r.isInlineMigrated()}
}

// isInlineMigrated reports whether the PersistentVolume was made from an inline volume.
func (r *Record) isInlineMigrated() bool {
	return r.Migrated && r.Claim() == types.NamespacedName{}
}

// PersistentVolumeName is the name of the PersistentVolume that was mounted; empty for other
// volumes.
func (r *Record) PersistentVolumeName() string {
	if r.PersistentVolume == nil || r.isInlineMigrated() {
		return ""
	}
	return r.PersistentVolume.Name
}

// Claim is the claim that the volume was mounted for; empty: none.
func (r *Record) Claim() types.NamespacedName {
	if r.PersistentVolume == nil || r.PersistentVolume.Spec.ClaimRef == nil {
		return types.NamespacedName{}
	}
	ref := r.PersistentVolume.Spec.ClaimRef
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

// DeviceNode is the node of a block volume's device that is mapped; empty: none.
func (r *Record) DeviceNode() string {
	if r.Confirmed == nil || r.Confirmed.Device == nil {
		return ""
	}
	return r.Confirmed.Device.Node
}

// ErrDamaged says that a record is truncated, or is no record at all.
var ErrDamaged = errors.New("the volume record is damaged")

// ErrNewer says that a newer podvol wrote a record. The subject of the
// [volume.Failure] is the record's schema version.
const ErrNewer volume.Cause = "the volume record is of a newer podvol"

// envelope is a record on disk. The version comes first. Every version of podvol
// can read it.
type envelope struct {
	Version int             `json:"version"`
	Record  json.RawMessage `json:"record"`
}

// Encode returns the record as JSON on one line, without a newline. It
// refuses a record without pod UID, volume, plugin, path or exactly one spec; the
// error is an *[volume.InvalidSpecError]. It does not change the record. The JSON has no
// checksum, so the caller must store one with it.
func Encode(r *Record) ([]byte, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	line, err := json.Marshal(struct {
		Version int     `json:"version"`
		Record  *Record `json:"record"`
	}{Version, r.Redacted()}) // an [envelope] in one go
	if err != nil {
		return nil, fmt.Errorf("encoding the record of volume %q: %w", r.Volumes[0], err)
	}
	return line, nil
}

// EncodeConfirmation returns the JSON that is stored beside a record once its
// volume is set up. It needs no sync: if it is lost, the volume is uncertain
// again.
func EncodeConfirmation(c Confirmation) ([]byte, error) { return json.Marshal(c) }

// Decode reads a record that [Encode] of this version wrote, and its confirmation. A confirmation that is empty or cannot be read
// counts as none. It ignores fields that this version does not know: the known
// ones are enough to tear the volume down. The errors:
//
//   - [ErrNewer]: the schema is newer.
//   - [ErrDamaged]: all other faults match it.
func Decode(record, confirmation []byte) (*Record, error) {
	var e envelope
	if err := json.Unmarshal(record, &e); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrDamaged, err)
	}
	switch {
	case e.Version > Version:
		return nil, &volume.Failure{
			Cause: ErrNewer, Subject: strconv.Itoa(e.Version), Next: "use the newer podvol that wrote it",
			What: fmt.Sprintf("the volume record has schema version %d, this podvol reads up to %d", e.Version, Version),
		}
	case e.Version < Version:
		return nil, fmt.Errorf("%w: schema version %d is not known", ErrDamaged, e.Version)
	}
	r := &Record{}
	if err := json.Unmarshal(e.Record, r); err != nil {
		return nil, fmt.Errorf("%w: %v", ErrDamaged, err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	var c Confirmation
	if json.Unmarshal(confirmation, &c) == nil && !c.At.IsZero() {
		r.Confirmed = &c
	}
	return r, nil
}

func (r *Record) check() error {
	if err := volume.CheckPathSegment("record's pod UID", string(r.PodUID)); err != nil {
		return err
	}
	if len(r.Volumes) == 0 {
		return volume.Invalid("record", "must name the volume")
	}
	for _, name := range r.Volumes {
		if err := volume.CheckPathSegment("record's volume", name); err != nil {
			return err
		}
	}
	if err := volume.CheckPluginName(r.Plugin); err != nil {
		return err
	}
	if err := checkRecordPath(r.Path); err != nil {
		return err
	}
	if (r.InlineVolume == nil) == (r.PersistentVolume == nil) {
		return volume.Invalid("record", "must hold either an inline volume or a PersistentVolume")
	}
	return volume.CheckPathSegment("record's spec name", r.Spec().Name())
}

func checkRecordPath(path string) error {
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != path:
		return volume.Invalid("record's path", "%q must be an absolute path without superfluous elements", path)
	case strings.ContainsRune(path, 0) || !utf8.ValidString(path): // JSON would change it
		return volume.Invalid("record's path", "must be UTF-8 without NUL bytes: %q", path)
	}
	return nil
}

// Redacted returns the record as [Encode] writes it: without the fields that no plugin reads and that
// only make it large. It also drops the secrets among options and parameters: a
// mounter gets them from the object.
func (r *Record) Redacted() *Record {
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
