package csi

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
)

// minRefresh is the shortest nodeAllocatableUpdatePeriodSeconds that the API takes.
const minRefresh = 10 * time.Second

// introductions keep what the cluster was told of the node's drivers true.
type introductions struct {
	plugin *Plugin
	// names are the drivers that the cluster is to be told of. Run works on them.
	names *work.Queue[string]
	told  told
}

func newIntroductions(p *Plugin) *introductions {
	i := &introductions{plugin: p}
	i.names = work.NewQueue(work.Config[string]{Reconcile: i.reconcile, FirstPause: drivers.FirstPause})
	return i
}

// again asks a driver anew.
func (i *introductions) again(name string) {
	i.told.forget(name)
	i.names.Enqueue(name)
}

// told is what the cluster was told of the node's drivers. Its zero value is ready.
type told struct {
	mu      sync.Mutex
	drivers map[string]toldDriver
	// periods are those of the drivers' objects.
	periods map[string]time.Duration
}

// toldDriver is the registration that was told last, and when.
type toldDriver struct {
	driver *drivers.Driver
	at     time.Time
}

// due returns how long what was told of a driver stays as it is; 0: until something changes.
// It reports false if the driver must be told of now.
func (t *told) due(d *drivers.Driver) (time.Duration, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, period := t.drivers[d.Name], t.periods[d.Name]
	if last.driver != d {
		return 0, false
	}
	if period == 0 {
		return 0, true
	}
	rest := time.Until(last.at.Add(period))
	return rest, rest > 0
}

func (t *told) note(d *drivers.Driver, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.drivers == nil {
		t.drivers = make(map[string]toldDriver)
	}
	t.drivers[d.Name] = toldDriver{d, at}
}

// forget has a driver told of anew.
func (t *told) forget(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.drivers, name)
}

// setPeriod notes what the driver's object says, and reports whether that is news.
func (t *told) setPeriod(name string, seconds *int64) bool {
	var period time.Duration
	if seconds != nil {
		period = max(time.Duration(*seconds)*time.Second, minRefresh)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.periods[name] == period {
		return false
	}
	if t.periods == nil {
		t.periods = make(map[string]time.Duration)
	}
	t.periods[name] = period
	return true
}

// publisher is the role; nil: the host has none.
func (i *introductions) publisher() volume.CSINodePublisher {
	role, err := volume.Role[volume.CSINodePublisher](i.plugin.Host)
	if err != nil {
		return nil
	}
	return role
}

// introduce asks a driver who the node is for it, and tells the cluster.
func (i *introductions) introduce(ctx context.Context, d *drivers.Driver) error {
	publisher := i.publisher()
	if publisher == nil {
		return nil
	}
	var info *csi.NodeGetInfoResponse
	err := i.plugin.drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodeGetInfo"}, func(ctx context.Context, s *drivers.Session) (err error) {
		info, err = s.Node.NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		return err
	})
	if err != nil {
		return err
	}
	segments := info.GetAccessibleTopology().GetSegments()
	entry := storagev1.CSINodeDriver{Name: d.Name, NodeID: info.GetNodeId(), TopologyKeys: slices.Sorted(maps.Keys(segments)),
		Allocatable: i.limit(d, info.GetMaxVolumesPerNode())}
	if entry.NodeID == "" {
		return volume.Invalid("nodeID", "driver %s gives this node no name", d.Name)
	}
	at := time.Now()
	if err := publisher.PublishDriver(ctx, entry, segments); err != nil {
		return err
	}
	i.told.note(d, at)
	_, _ = i.plugin.driverSpecOf(ctx, d.Name) // for the period; what cannot be read now is read with the first volume
	return nil
}

// limit is the number of volumes that the node takes; nil: the driver has none.
func (i *introductions) limit(d *drivers.Driver, n int64) *storagev1.VolumeNodeResources {
	if n < 0 {
		i.plugin.config.Logger.Warn("a CSI driver's limit of volumes is negative and is ignored", "driver", d.Name, "maxVolumesPerNode", n)
	}
	if n <= 0 {
		return nil
	}
	return &storagev1.VolumeNodeResources{Count: new(int32(min(n, math.MaxInt32)))}
}

// reconcile keeps what the cluster was told of a name true.
func (i *introductions) reconcile(ctx context.Context, name string) work.Result {
	publisher := i.publisher()
	if publisher == nil {
		return work.Result{}
	}
	d, err := i.plugin.drivers.Get(name)
	if err != nil {
		err = i.withdraw(ctx, publisher, name)
	} else if rest, told := i.told.due(d); told {
		return work.Result{After: rest}
	} else if err = i.introduce(ctx, d); err == nil {
		rest, _ := i.told.due(d)
		return work.Result{After: rest}
	}
	if err != nil && ctx.Err() == nil {
		i.plugin.config.Logger.Warn("the cluster cannot be told of a CSI driver", "driver", name, "error", err)
	}
	return work.Result{Reason: err}
}

func (i *introductions) withdraw(ctx context.Context, publisher volume.CSINodePublisher, name string) error {
	i.told.forget(name)
	err := publisher.WithdrawDriver(ctx, name)
	if _, gone := i.plugin.drivers.Get(name); gone == nil { // it came back meanwhile
		i.again(name)
	}
	return err
}
