package volume

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// VolumePlugin knows one kind of volume source. A plugin is initialised once
// and then used from several goroutines at a time. It never changes its
// arguments and keeps none of them beyond the object it returns.
type VolumePlugin interface {
	// Init hands the plugin its host. It does no I/O.
	Init(VolumeHost) error
	// GetPluginName returns the qualified name, such as
	// "kubernetes.io/nfs". It names directories and never changes.
	GetPluginName() string
	// CanSupport reports whether the plugin is responsible for the spec's kind
	// of source. It is false for nil and empty specs and judges the kind only,
	// not whether the source is valid.
	CanSupport(*Spec) bool
	// GetVolumeName returns a name of the source, the same for every spec that
	// means the same data, for example "server/export". An error says that the
	// spec is not of this plugin or is invalid.
	GetVolumeName(*Spec) (string, error)
	// NewMounter returns the mounter of the spec's volume for the pod. It does
	// no I/O and refuses every spec that can be seen to be invalid.
	NewMounter(*Spec, *v1.Pod) (Mounter, error)
	// NewUnmounter returns the unmounter of the volume with this spec name
	// ([Spec.Name]) in the pod. It does no I/O; the volume need not exist.
	NewUnmounter(volumeName string, podUID types.UID) (Unmounter, error)
	// ConstructVolumeSpec rebuilds a spec from what is left of a volume
	// without a record: its name, its directory and the mount table. The
	// result suffices to tear the volume down.
	ConstructVolumeSpec(ctx context.Context, volumeName, volumePath string) (ReconstructedVolume, error)
}

// ReconstructedVolume is a spec that was rebuilt from disk.
type ReconstructedVolume struct {
	Spec *Spec
	// Complete says that nothing was guessed: the spec mounts the same volume
	// again.
	Complete bool
	// SELinuxMountContext is the context the volume is mounted with, if any.
	SELinuxMountContext string
}

// Volume is a volume of a pod at its place on disk.
type Volume interface {
	// GetPath returns the directory at which the pod's containers find the
	// volume. It does no I/O.
	GetPath() string
	MetricsProvider
}

// Mounter sets one volume of one pod up. The caller sees to it that calls of
// SetUpAt and TearDownAt for one volume of one pod never overlap, on whichever
// mounter and unmounter they are made; a call that was given up by its ctx may
// still be waiting for the kernel. Everything else may be called meanwhile, and
// other volumes of the pod, and volumes of other pods, are set up and torn down
// at the same time.
type Mounter interface {
	Volume
	// GetAttributes describes the volume as it will be set up.
	GetAttributes() Attributes
	// SetUp is SetUpAt with GetPath.
	SetUp(context.Context, MounterArgs) error
	// SetUpAt makes the volume appear at dir, whose parents it creates. It is
	// idempotent: on a volume that is set up already it refreshes what can
	// change and succeeds. Where it fails it undoes what it did; an error that
	// is not marked by [NothingDone] may have left something, and calling
	// TearDownAt puts that right. When ctx ends it returns promptly.
	SetUpAt(ctx context.Context, dir string, args MounterArgs) error
}

// MounterArgs are the wishes of one pod.
type MounterArgs struct {
	// FsUser owns projected tokens when every container of the pod runs as it.
	FsUser *int64
	// FsGroup shall own the volume's files where the plugin manages ownership
	// (Attributes.Managed); SetUpAt sees to it, most easily by [SetOwnership].
	FsGroup *int64
	// FSGroupChangePolicy says when ownership is changed; nil means Always.
	FSGroupChangePolicy *v1.PodFSGroupChangePolicy
	// DesiredSize is the size in bytes that a local ephemeral volume shall be
	// limited to; nil means the volume's own limit.
	DesiredSize *resource.Quantity
	// SELinuxLabel is the mount context; empty means none.
	SELinuxLabel string
	// Progress is told how far a set-up is that takes long; nil: nobody wants
	// to know. It is called by one goroutine at a time, from when SetUpAt is
	// called until it returns, and does not block.
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

// Unmounter tears one volume of one pod down. Calls for one volume of one pod
// never overlap, as [Mounter] says.
type Unmounter interface {
	Volume
	// TearDown is TearDownAt with GetPath.
	TearDown(context.Context) error
	// TearDownAt unmounts the volume at dir and removes dir and what the
	// plugin keeps beside it. It is idempotent; what was never set up is torn
	// down with success. Data outside podvol's own directories is never
	// removed.
	TearDownAt(ctx context.Context, dir string) error
}

// Refresher is implemented by mounters whose contents expire. Absent: never.
type Refresher interface {
	// RefreshAfter is the time after which SetUpAt should be called again. It
	// is read after SetUp; the zero time means never.
	RefreshAfter() time.Time
}

// RefreshAfter returns when m's volume needs a new SetUp, or the zero time for
// never, also for mounters that are no [Refresher].
func RefreshAfter(m Mounter) time.Time {
	if r, ok := m.(Refresher); ok {
		return r.RefreshAfter()
	}
	return time.Time{}
}
