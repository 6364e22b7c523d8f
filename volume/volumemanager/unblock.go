package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// unmapDevice takes the device from the pod: mapDevice's steps in reverse, each
// of which succeeds where nothing is left to be done.
func (m *Manager) unmapDevice(ctx context.Context, was actualVolume, plugin volume.VolumePlugin) error {
	spec := was.record.Spec()
	able, err := blockPlugin(plugin, spec)
	if err != nil {
		return volume.NothingDone(err)
	}
	unmapper, err := able.NewBlockVolumeUnmapper(was.key.Spec, was.key.PodUID)
	if err != nil {
		return err
	}
	place, err := placeOf(unmapper, spec, was.key.PodUID)
	if err != nil {
		return err
	}
	for _, link := range []string{place.link, place.newLink()} {
		if err := unlink(link); err != nil {
			return err
		}
	}
	if err := m.holding(ctx, place.bind, m.config.DeviceHolder.Release); err != nil {
		return err
	}
	// Never lazily: what is out of sight would still be in use.
	if err := podmount.UnmountAll(ctx, m.host.Mounter, place.bind, mount.UnmountOptions{}); err != nil {
		return err
	}
	if err := podmount.RemovePoint(place.bind); err != nil {
		return err
	}
	return unmapper.UnmapPodDevice(ctx)
}

// unlink removes a link; a missing one is success, and anything else stays.
func unlink(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSymlink:
		return fmt.Errorf("%s is at the place of the pod's device, but no link; nothing was deleted: find out who put it there", path)
	}
	return podmount.Unlink(path)
}

// setUpDevice makes the device of a block volume ready on this node.
func (m *Manager) setUpDevice(ctx context.Context, u *setUp, devicePath string) error {
	before := m.setDevice(u.device.device, deviceState{touched: true})
	if _, err := u.mapping.mapper.SetUpDevice(ctx); err != nil {
		if !volume.IsUncertain(err) {
			m.setDevice(u.device.device, before)
		}
		return u.device.failed("SetUpDevice", u.record.Spec(), err)
	}
	m.setDevice(u.device.device, deviceState{touched: true, mounted: true, attachedAt: devicePath})
	return nil
}

// tearDownDevice undoes setUpDevice. First it removes the directory of the pods'
// binds: where it is not empty, somebody has the device of whom there is no
// record, and it is left alone.
func (m *Manager) tearDownDevice(ctx context.Context, use *deviceUse, spec *volume.Spec, podUID types.UID) error {
	unmapper, err := use.block.NewBlockVolumeUnmapper(spec.Name(), podUID)
	if err != nil {
		return use.failed("NewBlockVolumeUnmapper", spec, volume.NothingDone(err))
	}
	err = eintr.Do(func() error { return unix.Rmdir(use.device.path) })
	switch {
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return use.failed("TearDownDevice", spec, fmt.Errorf("the device is still bound below %s for a pod that is not known here; find out for which, and unmount it there: %w", use.device.path, err))
	case err != nil && !errors.Is(err, unix.ENOENT):
		return use.failed("TearDownDevice", spec, &fs.PathError{Op: "rmdir", Path: use.device.path, Err: err})
	}
	if err := unmapper.TearDownDevice(ctx, use.device.path, m.attachedPath(use.device)); err != nil {
		return use.failed("TearDownDevice", spec, err)
	}
	return nil
}

// attachedPath is where an attached device is; empty where nothing is attached,
// or nobody has said where.
func (m *Manager) attachedPath(key deviceKey) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.devices[key]; d != nil && d.attachedAt != "" {
		return d.attachedAt
	}
	return m.attached[key.name]
}
