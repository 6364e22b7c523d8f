package devices

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// anyPod stands for the pod of a block volume's unmapper, which only undoes what is done
// once per node.
const anyPod = "left"

// firstLeftPause is the pause after the first failure: most drivers register themselves a
// little later than the manager begins.
const firstLeftPause = 500 * time.Millisecond

// LeftConfig configures [Table.FindLeft] and [Left.Unstage].
type LeftConfig struct {
	// Adopt: the devices of an earlier owner are this one's. Without it nothing is unstaged.
	Adopt   bool
	RootDir string
	Plugins []volume.VolumePlugin
	// IsKnown reports whether the volume of a directory has a record.
	IsKnown func(rootdir.Key) bool
	// Gone is told of each device that counts as left no more.
	Gone   func(volume.VolumePlugin, volume.StagedDevice)
	Logger *slog.Logger
}

// Left has the devices that an earlier owner has left staged.
type Left struct {
	LeftConfig
	table *Table
	found []left
}

// left is a device that its plugin found staged.
type left struct {
	plugin volume.VolumePlugin
	device volume.StagedDevice
}

// PodsComplete lets devices go of which no volume is known. The caller holds the lock.
func (t *Table) PodsComplete() { t.complete() }

// FindLeft finds devices that an earlier owner of the root has left staged, of which no
// volume is known. They count as in use until they are unstaged. Volumes with records must be
// known already.
func (t *Table) FindLeft(ctx context.Context, c LeftConfig) *Left {
	l := &Left{LeftConfig: c, table: t}
	for _, p := range c.Plugins {
		devices, err := volume.FindStaged(ctx, p)
		if err != nil {
			t.doubt(p, volume.StagedDevice{Path: c.RootDir, MayBe: func(string) bool { return true }, Err: err}, c.Logger)
		}
		for _, d := range devices {
			if d.Spec == nil {
				t.doubt(p, d, c.Logger)
				continue
			}
			t.countLeft(p, d)
			if !d.Published { // else it goes with its pods
				l.found = append(l.found, left{p, d})
			}
		}
	}
	return l
}

// countLeft makes a device count as in use that may be attached, and that no volume holds.
func (t *Table) countLeft(p volume.VolumePlugin, d volume.StagedDevice) {
	if _, attachable := volume.AsAttachable(p); !attachable {
		return
	}
	if use, err := Of(p, d.Spec, anyPod); use != nil && err == nil && !t.isHeldAt(use.leftKey(d)) {
		t.Lock.Lock()
		defer t.Lock.Unlock()
		t.left[use.leftKey(d)] = struct{}{}
	}
}

// leftKey is the place of a device that was left, which may be another one than today's.
func (u *Use) leftKey(d volume.StagedDevice) Key {
	if u.block != nil {
		return u.Key
	}
	return Key{u.Key.Name, d.Path}
}

// forgetLeft notes that a device is staged no more. The caller holds the lock.
func (t *Table) forgetLeft(key Key) {
	delete(t.left, key)
	t.doubts = slices.DeleteFunc(t.doubts, func(d Doubt) bool { return d.Device.Path == key.Path })
}

// Doubt is a device that may be staged, and of which nothing says which volume it is. A report
// of a volume that it may be keeps that volume in use. A person has to end it, and the next
// manager sees that.
type Doubt struct {
	Plugin string
	Device volume.StagedDevice
}

func (d Doubt) mayBe(name v1.UniqueVolumeName) bool {
	own, ours := strings.CutPrefix(string(name), d.Plugin+"/")
	return ours && d.Device.MayBe(own)
}

func (t *Table) doubt(p volume.VolumePlugin, d volume.StagedDevice, log *slog.Logger) {
	log.Warn("what an earlier owner has left may be staged: the volume that it may be counts as in use", "device", d.Path, "error", d.Err)
	t.Lock.Lock()
	defer t.Lock.Unlock()
	t.doubts = append(t.doubts, Doubt{p.GetPluginName(), d})
}

// Doubts returns what may be staged. The caller holds the lock.
func (t *Table) Doubts() []Doubt { return t.doubts }

// Unstage undoes the staging, once the pods are complete. It retries failures, and returns
// when ctx has ended or no device is left.
//
//   - A device that a volume here holds is that volume's.
//   - A device whose mount shows elsewhere is in use.
//   - While a volume of the plugin has a directory and no record, all of its devices stay.
func (l *Left) Unstage(ctx context.Context) {
	if !l.Adopt || len(l.found) == 0 {
		return
	}
	select {
	case <-l.table.completed:
	case <-ctx.Done():
		return
	}
	var open atomic.Int64
	open.Store(int64(len(l.found)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := work.NewQueue(work.Config[int]{FirstPause: firstLeftPause, Reconcile: func(ctx context.Context, i int) work.Result {
		device := l.found[i].device
		err := l.unstage(ctx, l.found[i])
		if err != nil && ctx.Err() == nil {
			l.Logger.Warn("a device that an earlier owner has left stays", "device", device.Path, "error", err)
		}
		if err == nil {
			l.Logger.Info("a device that an earlier owner has left is unmounted, or in use here", "device", device.Path)
			l.Gone(l.found[i].plugin, device)
			if open.Add(-1) == 0 {
				cancel()
			}
		}
		return work.Result{Reason: err}
	}})
	for i := range l.found {
		queue.Enqueue(i)
	}
	queue.Start(ctx)
	<-ctx.Done()
	queue.Wait()
}

func (l *Left) unstage(ctx context.Context, f left) error {
	t, spec := l.table, f.device.Spec
	use, err := Of(f.plugin, spec, anyPod)
	if err != nil || !use.HasPlace() {
		return err
	}
	unlock, err := t.lock(ctx, use, spec, "UnmountDevice")
	if err != nil {
		return err
	}
	defer unlock()
	key := use.leftKey(f.device)
	switch {
	case t.isHeldAt(key): // and in use by that
	case t.isHeld(use.Key.Name):
		return use.Failed("UnmountDevice", spec, errors.New("a pod has this volume at another place"))
	default:
		if err := l.unmount(ctx, f, use); err != nil {
			return err
		}
	}
	t.Lock.Lock()
	defer t.Lock.Unlock()
	t.forgetLeft(key)
	return nil
}

func (l *Left) unmount(ctx context.Context, f left, use *Use) error {
	spec := f.device.Spec
	if err := errors.Join(l.table.Hidden(f.plugin.GetPluginName()), l.unknown(f.plugin)); err != nil {
		return use.Failed("UnmountDevice", spec, fmt.Errorf("a pod may use it: %w", err))
	}
	if use.block != nil {
		return use.tearDown(ctx, spec, anyPod, "")
	}
	refs, err := use.mounts.GetDeviceMountRefs(f.device.Path)
	if err == nil && len(refs) > 0 {
		err = fmt.Errorf("it is mounted elsewhere, at %s", refs[0])
	}
	if err != nil {
		return use.Failed("GetDeviceMountRefs", spec, err)
	}
	there := *use
	there.Key.Path = f.device.Path
	return there.unmount(ctx, spec)
}

// unknown names a volume of the plugin that has a directory and no record.
func (c LeftConfig) unknown(p volume.VolumePlugin) error {
	keys, err := rootdir.VolumeDirs(c.RootDir)
	for _, key := range keys {
		if key.Plugin == p.GetPluginName() && !c.IsKnown(key) {
			return errors.Join(err, fmt.Errorf("volume %s has a directory and no record", key))
		}
	}
	return err
}

// isHeldAt reports whether a volume keeps the device at a place.
func (t *Table) isHeldAt(key Key) bool {
	t.Lock.Lock()
	defer t.Lock.Unlock()
	d := t.devices[key]
	return d != nil && len(d.holders) > 0
}

// isHeld reports whether a volume keeps the device, wherever.
func (t *Table) isHeld(name v1.UniqueVolumeName) bool {
	t.Lock.Lock()
	defer t.Lock.Unlock()
	for key, d := range t.devices {
		if key.Name == name && len(d.holders) > 0 {
			return true
		}
	}
	return false
}
