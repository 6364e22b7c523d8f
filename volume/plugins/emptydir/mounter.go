package emptydir

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/diskusage"
	"github.com/podvol/podvol/util/projectquota"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/emptydirs"
)

// directory is what mounter and unmounter have in common.
type directory struct {
	volume.PodVolume
	plugin *plugin
}

// GetMetrics measures the volume's file system where it has one of its own, and
// walks the directory where it shares the node's.
func (d *directory) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := d.measure(ctx, noLimit)
	return metrics, d.Error("GetMetrics", err)
}

// measure asks the file system instead of walking if its count is no more than so many bytes.
func (d *directory) measure(ctx context.Context, counted int64) (*volume.Metrics, error) {
	mounts := table.Of(d.Host.GetMounter())
	_, mounted, err := mounts.At(d.GetPath())
	if err != nil {
		return nil, err
	}
	if mounted {
		return d.plugin.meter.FileSystem(ctx, d.GetPath())
	}
	if counted != noLimit {
		metrics, err := d.plugin.meter.Counted(ctx, d.GetPath(), d.count)
		if err == nil && metrics.Used.Value() <= counted {
			return metrics, nil
		}
		if _, without := errors.AsType[*projectquota.UnenforcedError](err); err != nil && !without {
			return metrics, err
		}
	}
	return d.plugin.meter.Tree(ctx, d.GetPath())
}

func (d *directory) count() (diskusage.Usage, error) {
	use, err := d.plugin.projects().Usage(d.GetPath())
	return diskusage.Usage{Bytes: use.Bytes, Inodes: use.Inodes}, err
}

type mounter struct {
	directory
	pod    *v1.Pod
	medium v1.StorageMedium
	mode   *fs.FileMode
	limit  int64
}

// GetMetrics needs no walk where the file system counts what the volume takes, and the pod's
// user namespace keeps its processes from changing that. Others can only make the count larger.
// So it shows that the volume is within its limit, and nothing if the pod has further limits.
func (m *mounter) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	counted := noLimit
	if m.pod.Spec.HostUsers != nil && !*m.pod.Spec.HostUsers && !limitsStorage(m.pod) {
		counted = m.limit
	}
	metrics, err := m.measure(ctx, counted)
	return metrics, m.Error("GetMetrics", err)
}

// limitsStorage reports whether the pod has a limit for all that it has on disk.
func limitsStorage(pod *v1.Pod) bool {
	return slices.ContainsFunc(containers(pod), func(c v1.Container) bool {
		_, limited := c.Resources.Limits[v1.ResourceEphemeralStorage]
		return limited
	})
}

func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{Managed: true, SELinuxRelabel: true}
}

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	size, err := m.size(ctx, args)
	if err != nil {
		return m.Error("SetUp", volume.NothingDone(err))
	}
	err = emptydirs.SetUp(ctx, m.PodVolume, dir, emptydirs.Options{
		Medium: m.medium, Mode: m.mode, SizeBytes: size, GID: args.FsGroup, Limit: m.limitOnDisk(args)})
	return m.Error("SetUp", m.withoutProject(dir, err))
}

func (m *mounter) size(ctx context.Context, args volume.MounterArgs) (int64, error) {
	switch m.medium {
	case v1.StorageMediumDefault:
		return noLimit, nil
	case v1.StorageMediumMemory:
		return emptydirs.MemorySize(ctx, m.Host, m.pod, m.limit, desired(args))
	}
	return emptydirs.Least(m.limit, desired(args)), nil
}

type unmounter struct{ directory }

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt removes the volume with all its contents. Its project is free afterwards.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	projects := u.plugin.projects()
	lift := func() error { return projects.Lift(filepath.Clean(dir)) }
	if err := emptydirs.TearDown(ctx, u.PodVolume, dir, false, lift); err != nil {
		return u.Error("TearDown", err)
	}
	u.plugin.quotas.note(u.key(), nil)
	return u.Error("TearDown", projects.Forget(filepath.Clean(dir)))
}
