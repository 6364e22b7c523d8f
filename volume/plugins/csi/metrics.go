package csi

import (
	"context"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/stats"
)

// GetMetrics asks the driver by NodeGetVolumeStats and NodeGetVolumeHealth, for at most 30
// seconds. Beside an error there are the last metrics, with their own time, and the volume's
// condition. A driver without the calls has no metrics: [volume.ErrMetricsUnsupported].
func (m *mounted) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	data, err := m.plugin.identify(m.PodVolume.GetPath(), "", m.key(false))
	if data == nil && err == nil {
		data, err = m.plugin.identify(m.PodVolume.GetPath(), "", m.key(true))
	}
	if data == nil && err == nil {
		err = unidentified(m.PodVolume.GetPath())
	}
	if err != nil {
		return nil, m.Error("GetMetrics", err)
	}
	v := stats.Volume{Driver: data.DriverName, Handle: data.VolumeHandle, Published: m.GetPath()}
	if data.Lifecycle != csivolume.Lifecycle(true) {
		v.Staged = m.plugin.disk.GlobalMount(&source{Driver: data.DriverName, Handle: data.VolumeHandle})
	}
	metrics, err := m.plugin.meter.Measure(ctx, v)
	return metrics, m.Error("GetMetrics", err)
}

// GetMetrics is that of a block volume: its size, if the driver tells.
func (b *blockVolume) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	data, err := b.plugin.identify(b.plugin.disk.BlockData(b.Name), "", b.key())
	if data == nil && err == nil {
		err = unidentified(b.plugin.disk.BlockData(b.Name))
	}
	if err != nil {
		return nil, b.Error("GetMetrics", err)
	}
	metrics, err := b.plugin.meter.Measure(ctx, stats.Volume{Driver: data.DriverName, Handle: data.VolumeHandle, Published: b.publishPath(), Staged: b.GetStagingPath()})
	return metrics, b.Error("GetMetrics", err)
}
