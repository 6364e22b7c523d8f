package devices

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// LeftConfig is what [Table.UnstageLeft] is made of.
type LeftConfig struct {
	// Adopt: what an earlier owner has left is this one's. Without it nothing is done.
	Adopt   bool
	RootDir string
	Plugins []volume.VolumePlugin
	// IsKnown reports whether the volume of a directory has a record.
	IsKnown func(rootdir.Key) bool
	Logger  *slog.Logger
}

// left is a device that its plugin found staged.
type left struct {
	plugin volume.VolumePlugin
	device volume.StagedDevice
}

// PodsComplete lets devices go of which no volume is known. The caller holds the lock.
func (t *Table) PodsComplete() { t.complete() }

// UnstageLeft undoes the staging of devices that an earlier owner of the root has left:
// those of which no volume is known, once the pods are complete. It tries again what fails,
// and returns when ctx has ended, or nothing is left to be done.
//
//   - A device that a volume here holds is that volume's.
//   - A device whose mount shows elsewhere is in use.
//   - While a volume of the plugin has a directory and no record, all of its devices stay.
func (t *Table) UnstageLeft(ctx context.Context, c LeftConfig) {
	if !c.Adopt {
		return
	}
	var found []left
	for _, p := range c.Plugins {
		devices, err := volume.FindStaged(ctx, p)
		if err != nil {
			c.Logger.Warn("the devices that an earlier owner has left cannot be found", "plugin", p.GetPluginName(), "error", err)
		}
		for _, d := range devices {
			found = append(found, left{p, d})
		}
	}
	if len(found) == 0 {
		return
	}
	select {
	case <-t.completed:
	case <-ctx.Done():
		return
	}
	var open atomic.Int64
	open.Store(int64(len(found)))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := work.NewQueue(work.Config[int]{FirstPause: firstLeftPause, Reconcile: func(ctx context.Context, i int) work.Result {
		err := t.unstageLeft(ctx, c, found[i])
		if err != nil && ctx.Err() == nil {
			c.Logger.Warn("a device that an earlier owner has left stays", "device", found[i].device.Path, "error", err)
		}
		if err == nil {
			c.Logger.Info("a device that an earlier owner has left is unmounted, or in use here", "device", found[i].device.Path)
			if open.Add(-1) == 0 {
				cancel()
			}
		}
		return work.Result{Reason: err}
	}})
	for i := range found {
		queue.Enqueue(i)
	}
	queue.Start(ctx)
	<-ctx.Done()
	queue.Wait()
}

func (t *Table) unstageLeft(ctx context.Context, c LeftConfig, l left) error {
	spec := l.device.Spec
	use, err := Of(l.plugin, spec, anyPod)
	if err != nil || !use.hasPlace() {
		return err
	}
	unlock, err := t.lock(ctx, use, spec, "UnmountDevice")
	if err != nil {
		return err
	}
	defer unlock()
	if t.isHeld(use.Key.Name) {
		return nil
	}
	if err := errors.Join(t.Hidden(l.plugin.GetPluginName()), c.unknown(l.plugin)); err != nil {
		return use.Failed("UnmountDevice", spec, fmt.Errorf("a pod may use it: %w", err))
	}
	if use.block != nil {
		return use.tearDown(ctx, spec, anyPod, "")
	}
	refs, err := use.mounts.GetDeviceMountRefs(l.device.Path)
	if err == nil && len(refs) > 0 {
		err = fmt.Errorf("it is mounted elsewhere, at %s", refs[0])
	}
	if err != nil {
		return use.Failed("GetDeviceMountRefs", spec, err)
	}
	there := *use
	there.Key.Path = l.device.Path
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

// isHeld reports whether a volume keeps the device.
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
