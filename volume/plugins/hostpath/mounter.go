package hostpath

import (
	"context"

	"github.com/podvol/podvol/volume"
)

type mounter struct {
	volume.PodVolume
	plugin   *plugin
	path     string
	want     pathType
	readOnly bool
	made     *made // nil: it was not provisioned
}

// GetPath returns the path on the host.
func (m *mounter) GetPath() string { return m.path }

// GetAttributes reports Managed false: files of the node are never re-owned or
// relabelled for a pod.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.readOnly}
}

// GetMetrics returns the metrics of the path's file system.
func (m *mounter) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := m.plugin.meter.FileSystem(ctx, m.path)
	return metrics, m.Error("GetMetrics", err)
}

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.path, args)
}

// SetUpAt checks the path and creates it where its type says so, but for a
// volume that was provisioned: one whose directory is gone is [ErrLost], or
// [ErrNoBook] where its disk seems not to be mounted. It makes nothing at dir.
func (m *mounter) SetUpAt(ctx context.Context, _ string, _ volume.MounterArgs) error {
	files := m.plugin.files.Of(m.Host)
	if m.made != nil {
		if err := m.made.checkThere(ctx, files); err != nil {
			return m.Error("SetUp", err)
		}
	}
	return m.Error("SetUp", ensure(ctx, files, m.path, m.want))
}

type unmounter struct {
	volume.PodVolume
	volume.NoMetrics
}

// GetPath is empty: the path of a hostPath volume is in its spec alone.
func (u *unmounter) GetPath() string { return "" }

// TearDown does nothing: the path is the node's.
func (u *unmounter) TearDown(context.Context) error { return nil }

// TearDownAt does nothing: the path is the node's.
func (u *unmounter) TearDownAt(context.Context, string) error { return nil }
