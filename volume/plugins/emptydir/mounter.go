package emptydir

import (
	"context"
	"io/fs"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/emptydirs"
	"github.com/podvol/podvol/volume/meter"
)

// directory is what mounter and unmounter have in common.
type directory struct {
	volume.PodVolume
	meter *meter.Meter
}

// GetMetrics measures the volume's file system where it has one of its own, and
// walks the directory where it shares the node's.
func (d *directory) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := d.measure(ctx)
	return metrics, d.Error("GetMetrics", err)
}

func (d *directory) measure(ctx context.Context) (*volume.Metrics, error) {
	mounts := table.Of(d.Host.GetMounter())
	_, mounted, err := mounts.At(d.GetPath())
	if err != nil {
		return nil, err
	}
	if mounted {
		return d.meter.FileSystem(ctx, d.GetPath())
	}
	return d.meter.Tree(ctx, d.GetPath())
}

type mounter struct {
	directory
	pod    *v1.Pod
	medium v1.StorageMedium
	mode   *fs.FileMode
	limit  int64
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
	return m.Error("SetUp", emptydirs.SetUp(ctx, m.PodVolume, dir, emptydirs.Options{
		Medium: m.medium, Mode: m.mode, SizeBytes: size, GID: args.FsGroup}))
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

// TearDownAt removes the volume with all its contents.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	return u.Error("TearDown", emptydirs.TearDown(ctx, u.PodVolume, dir, false))
}
