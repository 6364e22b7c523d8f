package csi

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// statsTimeout bounds a measurement, which is no reason to wait for a driver.
const statsTimeout = 30 * time.Second

// measured keeps the last metrics of each place. Its zero value is ready.
type measured struct {
	mu   sync.Mutex
	last map[string]*volume.Metrics
}

func (m *measured) get(place string) *volume.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last[place]
}

func (m *measured) put(place string, metrics *volume.Metrics) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		m.last = make(map[string]*volume.Metrics)
	}
	if metrics == nil {
		delete(m.last, place)
		return
	}
	m.last[place] = metrics
}

// GetMetrics asks the driver by NodeGetVolumeStats, for at most 30 seconds. Beside an
// error there are the last metrics, with their own time. A driver without the call has
// no metrics: [volume.ErrMetricsUnsupported].
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
	metrics, err := m.plugin.measure(ctx, data, m.GetPath())
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
	metrics, err := b.plugin.measure(ctx, data, b.publishPath())
	return metrics, b.Error("GetMetrics", err)
}

func (p *Plugin) measure(ctx context.Context, data *volData, place string) (*volume.Metrics, error) {
	metrics, err := p.ask(ctx, data, place)
	if err != nil {
		return p.known.metrics.get(place), err
	}
	p.known.metrics.put(place, metrics)
	return metrics, nil
}

func (p *Plugin) ask(ctx context.Context, data *volData, place string) (*volume.Metrics, error) {
	d, err := p.drivers.Get(data.DriverName)
	if err != nil {
		return nil, err
	}
	if since, hangs := d.Hangs(statsTimeout); hangs {
		return nil, fmt.Errorf("driver %s has a call that has not returned since %s, so it is asked nothing else", d.Name, since.UTC().Format(time.RFC3339))
	}
	ctx, cancel := context.WithTimeout(ctx, min(statsTimeout, p.config.CallTimeout))
	defer cancel()
	s, err := p.drivers.Session(ctx, d)
	if err != nil {
		return nil, err
	}
	if !s.Has(csi.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		return nil, volume.ErrMetricsUnsupported
	}
	var answer *csi.NodeGetVolumeStatsResponse
	now := metav1.Now()
	err = p.drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodeGetVolumeStats", Volume: data.VolumeHandle}, func(ctx context.Context, s *drivers.Session) (err error) {
		answer, err = s.Node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: data.VolumeHandle, VolumePath: place})
		return err
	})
	if err != nil {
		return nil, err
	}
	metrics := &volume.Metrics{Time: now}
	for _, u := range answer.GetUsage() {
		switch u.GetUnit() {
		case csi.VolumeUsage_BYTES:
			metrics.Capacity, metrics.Used, metrics.Available = bytes(u.GetTotal()), bytes(u.GetUsed()), bytes(u.GetAvailable())
		case csi.VolumeUsage_INODES:
			metrics.Inodes, metrics.InodesUsed, metrics.InodesFree = count(u.GetTotal()), count(u.GetUsed()), count(u.GetAvailable())
		}
	}
	if metrics.Capacity == nil && metrics.Inodes == nil {
		return nil, fmt.Errorf("driver %s answers NodeGetVolumeStats of volume %.128q without bytes and inodes", data.DriverName, data.VolumeHandle)
	}
	return metrics, nil
}

func bytes(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
func count(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }
