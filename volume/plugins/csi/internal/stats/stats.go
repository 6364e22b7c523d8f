// Package stats asks drivers for the size, use and health of volumes.
package stats

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// timeout bounds a question, which is no reason to wait for a driver.
const timeout = 30 * time.Second

// Meter measures volumes, and keeps the last metrics of each place. It is safe for concurrent
// use. The metrics that it returns must not be changed.
type Meter struct {
	Drivers *drivers.Set
	// CallTimeout bounds a question, if it is below 30 seconds.
	CallTimeout time.Duration
	Logger      *slog.Logger

	mu   sync.Mutex
	last map[string]*volume.Metrics
}

// Volume is a volume that is on the node: published at a place, and staged at another one unless
// it is an inline volume.
type Volume struct{ Driver, Handle, Published, Staged string }

// Forget drops what is known of the volume that was published at a place.
func (m *Meter) Forget(place string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.last, place)
}

func (m *Meter) get(place string) *volume.Metrics {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last[place]
}

func (m *Meter) put(place string, metrics *volume.Metrics) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last == nil {
		m.last = make(map[string]*volume.Metrics)
	}
	m.last[place] = metrics
}

// Measure asks the volume's driver. Beside an error there are the last metrics of its place, with
// their own time, and the condition that was told. [volume.ErrMetricsUnsupported]: the driver
// tells neither.
func (m *Meter) Measure(ctx context.Context, v Volume) (*volume.Metrics, error) {
	last := m.get(v.Published)
	d, s, err := m.willing(ctx, v.Driver)
	if err != nil {
		return last, err
	}
	metrics, err := m.usage(ctx, d, s, v)
	unsupported := errors.Is(err, volume.ErrMetricsUnsupported)
	if metrics == nil && last != nil {
		metrics = new(*last)
	}
	if s.Has(csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH) {
		condition, healthErr := m.health(ctx, d, v)
		switch {
		case healthErr == nil && (metrics == nil || unsupported):
			metrics = &volume.Metrics{Time: metav1.Now(), Condition: condition}
		case healthErr == nil:
			metrics.Condition = condition
		case metrics != nil && last != nil:
			metrics.Condition = last.Condition
		}
		if unsupported {
			err = healthErr
		}
	}
	if metrics != nil {
		m.put(v.Published, metrics)
	}
	m.askStorage(ctx, d, s)
	return metrics, err
}

// willing returns a driver that can be asked: none of its calls hangs.
func (m *Meter) willing(ctx context.Context, name string) (*drivers.Driver, *drivers.Session, error) {
	d, err := m.Drivers.Get(name)
	if err != nil {
		return nil, nil, err
	}
	if since, hangs := d.Hangs(timeout); hangs {
		return nil, nil, fmt.Errorf("driver %s has a call that has not returned since %s, so it is asked nothing else", d.Name, since.UTC().Format(time.RFC3339))
	}
	ctx, cancel := m.briefly(ctx)
	defer cancel()
	s, err := m.Drivers.Session(ctx, d)
	return d, s, err
}

// briefly bounds a question to a driver.
func (m *Meter) briefly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(timeout, m.CallTimeout))
}

// usage asks for the size and use of a volume, and for the condition that drivers before CSI
// 1.13 tell with it.
func (m *Meter) usage(ctx context.Context, d *drivers.Driver, s *drivers.Session, v Volume) (*volume.Metrics, error) {
	if !s.Has(csi.NodeServiceCapability_RPC_GET_VOLUME_STATS) {
		return nil, volume.ErrMetricsUnsupported
	}
	ctx, cancel := m.briefly(ctx)
	defer cancel()
	var answer *csi.NodeGetVolumeStatsResponse
	metrics := &volume.Metrics{Time: metav1.Now()}
	err := m.Drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodeGetVolumeStats", Volume: v.Handle}, func(ctx context.Context, s *drivers.Session) (err error) {
		answer, err = s.Node.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: v.Handle, VolumePath: v.Published})
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, u := range answer.GetUsage() {
		switch u.GetUnit() {
		case csi.VolumeUsage_BYTES:
			metrics.Capacity, metrics.Used, metrics.Available = bytes(u.GetTotal()), bytes(u.GetUsed()), bytes(u.GetAvailable())
		case csi.VolumeUsage_INODES:
			metrics.Inodes, metrics.InodesUsed, metrics.InodesFree = count(u.GetTotal()), count(u.GetUsed()), count(u.GetAvailable())
		}
	}
	if s.Has(oldVolumeCondition) {
		metrics.Condition = conditionBeside(m.Drivers.Redact, answer)
	}
	if metrics.Capacity == nil && metrics.Inodes == nil && metrics.Condition == nil {
		return nil, fmt.Errorf("driver %s answers NodeGetVolumeStats of volume %.128q without bytes and inodes", v.Driver, v.Handle)
	}
	return metrics, nil
}

func bytes(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
func count(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.DecimalSI) }
