package intree

import (
	"context"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/emptydirs"
	"github.com/podvol/podvol/volume/validation"
)

// NewWrapperMounter returns the mounter of the emptyDir that a volume is built in:
// call its SetUpAt with the volume's own directory. Unlike the tree's it wraps
// emptyDirs alone, which is all that plugins have wrapped, and has no use for the
// options. Another source, an invalid one, and a name that leads elsewhere are
// refused. It does no I/O.
func (h *Host) NewWrapperMounter(volName string, spec volume.Spec, pod *v1.Pod, opts volume.VolumeOptions) (volume.Mounter, error) {
	if pod == nil {
		return nil, volume.Invalid("pod", "is missing")
	}
	w, err := h.wrapped(volName, spec, pod.UID)
	if err != nil {
		return nil, err
	}
	w.Pod = types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	return &wrapperMounter{*w, pod, spec.Volume.EmptyDir}, nil
}

// NewWrapperUnmounter returns the unmounter of the emptyDir that a volume is built
// in, as [Host.NewWrapperMounter] does its mounter.
func (h *Host) NewWrapperUnmounter(volName string, spec volume.Spec, podUID types.UID) (volume.Unmounter, error) {
	w, err := h.wrapped(volName, spec, podUID)
	if err != nil {
		return nil, err
	}
	return &wrapperUnmounter{*w}, nil
}

// UnmountViaEmptyDir removes a volume that was built in an emptyDir: every mount
// on dir, then dir with its contents, by descriptor and never across a mount, and
// the mark that says that it was set up. It is idempotent.
func UnmountViaEmptyDir(ctx context.Context, dir string, host *Host, volName string, volSpec volume.Spec, podUID types.UID) error {
	u, err := host.NewWrapperUnmounter(volName, volSpec, podUID)
	if err != nil {
		return err
	}
	return u.TearDownAt(ctx, dir)
}

// wrapper is what mounter and unmounter have in common.
type wrapper struct {
	volume.PodVolume
	volume.NoMetrics
}

func (h *Host) wrapped(volName string, spec volume.Spec, podUID types.UID) (*wrapper, error) {
	if spec.Volume == nil || spec.Volume.EmptyDir == nil {
		return nil, volume.Invalid("volume", "must be an emptyDir to be wrapped")
	}
	if err := validation.EmptyDir(spec.Volume.EmptyDir); err != nil {
		return nil, err
	}
	pv, err := volume.NewUnmountedPodVolume(h.VolumeHost, emptydirs.PluginName, volName, podUID)
	if err != nil {
		return nil, err
	}
	return &wrapper{PodVolume: pv}, nil
}

type wrapperMounter struct {
	wrapper
	pod    *v1.Pod
	source *v1.EmptyDirVolumeSource
}

func (m *wrapperMounter) GetAttributes() volume.Attributes {
	return volume.Attributes{Managed: true, SELinuxRelabel: true}
}

func (m *wrapperMounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt makes the directory, in memory where the source says so. One that is
// there already stays as it is, with its contents.
func (m *wrapperMounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	o := emptydirs.Options{Medium: m.source.Medium, GID: args.FsGroup, Wrapped: true}
	if m.source.SizeLimit != nil {
		o.SizeBytes = m.source.SizeLimit.Value()
	}
	if o.Medium == v1.StorageMediumMemory {
		size, err := emptydirs.MemorySize(ctx, m.Host, m.pod, o.SizeBytes)
		if err != nil {
			return m.Error("SetUp", volume.NothingDone(err))
		}
		o.SizeBytes = size
	}
	return m.Error("SetUp", emptydirs.SetUp(ctx, m.PodVolume, dir, o))
}

type wrapperUnmounter struct{ wrapper }

func (u *wrapperUnmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt removes the directory with its contents.
func (u *wrapperUnmounter) TearDownAt(ctx context.Context, dir string) error {
	return u.Error("TearDown", emptydirs.TearDown(ctx, u.PodVolume, dir, true, nil))
}
