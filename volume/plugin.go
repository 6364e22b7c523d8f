package volume

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// VolumePlugin knows one kind of volume source. A plugin is initialised once. It
// is then used from several goroutines at a time. It never changes its arguments.
// It keeps none of them, except in the object that it returns.
type VolumePlugin interface {
	// Init hands the plugin its host. It does no I/O.
	Init(VolumeHost) error
	// GetPluginName returns the qualified name, such as "kubernetes.io/nfs".
	// Directories are named after it. It never changes.
	GetPluginName() string
	// CanSupport reports whether the spec's kind of source is the plugin's. It is
	// false for nil and empty specs. It does not check whether the source is
	// valid.
	CanSupport(*Spec) bool
	// GetVolumeName returns a name of the source, for example "server/export".
	// The name is the same for every spec that means the same data. The error
	// says that the spec is not of this plugin or is invalid.
	GetVolumeName(*Spec) (string, error)
	// NewMounter returns the mounter of the spec's volume for the pod. It does no
	// I/O. It refuses every spec that is invalid without a look at the node.
	NewMounter(*Spec, *v1.Pod) (Mounter, error)
	// NewUnmounter returns the unmounter of the pod's volume with this spec name
	// ([Spec.Name]). It does no I/O. The volume need not exist.
	NewUnmounter(volumeName string, podUID types.UID) (Unmounter, error)
	// ConstructVolumeSpec rebuilds the spec of a volume without a record, from
	// its name, its directory and the mount table. The result is enough to tear
	// the volume down.
	ConstructVolumeSpec(ctx context.Context, volumeName, volumePath string) (ReconstructedVolume, error)
}

// ReconstructedVolume is a spec that was rebuilt from disk.
type ReconstructedVolume struct {
	Spec *Spec
	// Complete says that no part of the spec is a guess: the spec mounts the same
	// volume again.
	Complete bool
	// SELinuxMountContext is the SELinux context of the volume's mount, if it has
	// one.
	SELinuxMountContext string
}

// Volume is a volume of a pod at its place on disk.
type Volume interface {
	// GetPath returns the directory at which the pod's containers find the
	// volume. It does no I/O.
	GetPath() string
	MetricsProvider
}

// Mounter sets one volume of one pod up. The caller keeps these rules:
//
//   - Calls of SetUpAt and TearDownAt for one volume of one pod never overlap,
//     whichever mounters and unmounters they are made on. A call that returned
//     because its ctx ended may still wait for the kernel.
//   - All other methods may be called at the same time.
//   - Other volumes of the pod, and volumes of other pods, may be set up and torn
//     down at the same time.
type Mounter interface {
	Volume
	// GetAttributes describes the volume after SetUp.
	GetAttributes() Attributes
	// SetUp calls SetUpAt with GetPath.
	SetUp(context.Context, MounterArgs) error
	// SetUpAt sets the volume up at dir. It creates dir's parents.
	//
	//   - It is idempotent. If the volume is set up already, it refreshes the
	//     contents that can change, and succeeds.
	//   - If it fails, it undoes its work. An error without the mark of
	//     [NothingDone] may have left something; TearDownAt removes that.
	//   - When ctx ends it returns promptly.
	SetUpAt(ctx context.Context, dir string, args MounterArgs) error
}

// MounterArgs are the options of one pod.
type MounterArgs struct {
	// FsUser owns projected tokens if every container of the pod runs as this
	// user.
	FsUser *int64
	// FsGroup is the group that SetUpAt gives the volume's files to, if the
	// plugin manages ownership (Attributes.Managed). [fsgroup.Set] does it.
	FsGroup *int64
	// FSGroupChangePolicy says when ownership is changed; nil means Always.
	FSGroupChangePolicy *v1.PodFSGroupChangePolicy
	// DesiredSize is the size limit of a local ephemeral volume, in bytes; nil
	// means the volume's own limit.
	DesiredSize *resource.Quantity
	// SELinuxLabel is the mount context; empty means none.
	SELinuxLabel string
	// Progress receives the progress of a long set-up; nil: progress is not
	// reported. One goroutine at a time calls it, only while SetUpAt runs. It
	// does not block.
	Progress func(Progress)
}

// Attributes describe a mounted volume.
type Attributes struct {
	// ReadOnly: the volume cannot be written to.
	ReadOnly bool
	// Managed: files may be given to the pod's fsGroup.
	Managed bool
	// SELinuxRelabel: files may be relabelled for the pod.
	SELinuxRelabel bool
}

// Unmounter tears one volume of one pod down. Its calls never overlap, as
// [Mounter] says.
type Unmounter interface {
	Volume
	// TearDown calls TearDownAt with GetPath.
	TearDown(context.Context) error
	// TearDownAt unmounts the volume at dir. It removes dir and the files that
	// the plugin keeps beside it. It is idempotent. It succeeds if the volume was
	// never set up. It never removes data outside podvol's own directories.
	TearDownAt(ctx context.Context, dir string) error
}

// Refresher is implemented by mounters and by mappers of block volumes whose contents
// expire. Absent: they do not expire.
type Refresher interface {
	// RefreshAfter is the time of the next SetUpAt or MapPodDevice. It is read after
	// SetUp or MapPodDevice. The zero time means never.
	RefreshAfter() time.Time
}

// RefreshAfter returns the time at which the volume of m, a [Mounter] or a
// [BlockVolumeMapper], needs a new SetUp. The zero time means never. It is zero for those
// that are no [Refresher].
func RefreshAfter(m any) time.Time {
	if r, ok := m.(Refresher); ok {
		return r.RefreshAfter()
	}
	return time.Time{}
}

// Progress is the progress of a long task, such as a change of the owner of many
// files, or the making of a file system.
type Progress struct {
	// Doing names the task, in words that follow "is": "setting the owner of
	// files".
	Doing string
	// Done is the finished part of Total; a Total of 0 means unknown. Doing names
	// the unit.
	Done, Total int64
}

// String returns a line for people, such as "setting the owner of files: 300
// of 1000".
func (p Progress) String() string {
	switch {
	case p.Total > 0:
		return fmt.Sprintf("%s: %d of %d", p.Doing, p.Done, p.Total)
	case p.Done > 0:
		return fmt.Sprintf("%s: %d", p.Doing, p.Done)
	}
	return p.Doing
}

// MetricsProvider measures a volume.
type MetricsProvider interface {
	// GetMetrics measures the volume and returns promptly when ctx ends. The
	// error matches [ErrMetricsUnsupported] if this kind of volume has no
	// metrics. There may be metrics beside an error. They are of an earlier time
	// (see their Time) or incomplete, as the error says; [meter.Meter] does so.
	GetMetrics(ctx context.Context) (*Metrics, error)
}

// Metrics are the size and use of a volume. A nil field means unknown.
type Metrics struct {
	// Time is the time of the measurement. For a walk it is the time at which it
	// began.
	Time metav1.Time
	// Used, Capacity and Available are in bytes. Used of a walked volume is the
	// space of its files. Used of a file system is the space in use in all.
	Used, Capacity, Available *resource.Quantity
	// InodesUsed, Inodes and InodesFree are numbers of inodes.
	InodesUsed, Inodes, InodesFree *resource.Quantity
	// Condition is the volume's health as its storage told it last; nil: it tells nothing.
	// It may be newer than Time.
	Condition *Condition
}

// Condition is the health of a volume, or of a driver's storage, in the words of the storage.
type Condition struct {
	// Abnormal: something is wrong, and Message says what.
	Abnormal bool
	Message  string
}

// ErrMetricsUnsupported says that a volume has no metrics of its own.
var ErrMetricsUnsupported = errors.New("this kind of volume has no metrics")

// NoMetrics is the MetricsProvider of volumes without metrics.
type NoMetrics struct{}

// GetMetrics returns [ErrMetricsUnsupported].
func (NoMetrics) GetMetrics(context.Context) (*Metrics, error) { return nil, ErrMetricsUnsupported }

// Spec is one volume for a plugin: an inline volume of a pod, or a
// PersistentVolume. Exactly one of Volume and PersistentVolume is set. Once a
// plugin has received a Spec, the Spec and the objects that it points to never
// change.
type Spec struct {
	Volume           *v1.Volume
	PersistentVolume *v1.PersistentVolume
	// ReadOnly is the pod's option for a PersistentVolume
	// (persistentVolumeClaim.readOnly). Inline sources have their own.
	ReadOnly bool
	// InlineVolumeSpecForCSIMigration marks a PersistentVolume that was made
	// from an inline volume by translation to CSI.
	InlineVolumeSpecForCSIMigration bool
	// Migrated marks a spec that was translated from an in-tree source to CSI.
	Migrated bool
}

// NewSpecFromVolume returns the Spec of an inline volume. The Spec keeps the
// pointer.
func NewSpecFromVolume(v *v1.Volume) *Spec { return &Spec{Volume: v} }

// NewSpecFromPersistentVolume returns the Spec of a PersistentVolume as a pod
// uses it, read-only or not. The Spec keeps the pointer.
func NewSpecFromPersistentVolume(pv *v1.PersistentVolume, readOnly bool) *Spec {
	return &Spec{PersistentVolume: pv, ReadOnly: readOnly}
}

// Name is the volume's name in the pod, or the PersistentVolume's name. The
// volume's directory is named after it. It is empty for a nil or empty Spec.
func (s *Spec) Name() string {
	switch {
	case s == nil:
		return ""
	case s.Volume != nil:
		return s.Volume.Name
	case s.PersistentVolume != nil:
		return s.PersistentVolume.Name
	}
	return ""
}

// IsKubeletExpandable reports whether the node may be asked to expand the volume.
// Inline sources cannot grow. Of PersistentVolumes, FlexVolume, CSI and those
// whose file system is the node's can grow, as the plugin decides.
func (s *Spec) IsKubeletExpandable() bool {
	return s != nil && s.PersistentVolume != nil
}

// IsBlock reports whether containers see the volume as a device and not as a file
// system: a PersistentVolume of volumeMode Block.
func (s *Spec) IsBlock() bool {
	if s == nil || s.PersistentVolume == nil {
		return false
	}
	mode := s.PersistentVolume.Spec.VolumeMode
	return mode != nil && *mode == v1.PersistentVolumeBlock
}

// ObjectRef names an API object by its kind ("Secret", "ConfigMap", "Pod"), its
// namespace and its name. The namespace of cluster-wide kinds is empty.
type ObjectRef struct {
	Kind string
	types.NamespacedName
}

// NewObjectRef returns the reference to an object.
func NewObjectRef(kind, namespace, name string) ObjectRef {
	return ObjectRef{Kind: kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// String is "Kind namespace/name", or "Kind name" for cluster-wide kinds. It is one line: of names
// that no object can have, control characters are escaped.
func (r ObjectRef) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + oneLine(r.Name)
	}
	return r.Kind + " " + oneLine(r.Namespace) + "/" + oneLine(r.Name)
}

func oneLine(name string) string {
	if !strings.ContainsFunc(name, unicode.IsControl) {
		return name
	}
	quoted := strconv.Quote(name)
	return quoted[1 : len(quoted)-1]
}
