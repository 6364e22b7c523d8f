package volumemanager

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/loophold"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/mountrecord"
)

// DeviceHolder keeps a block volume's device open while a pod has it, so that
// the kernel cannot give its number to another device: else a device that was
// detached and another attached would be the pod's without anybody's knowing.
// A hold outlives the process.
//
// Both calls may block as long as the device does. The manager waits no longer
// than an operation's context allows, makes one call for a path at a time, and
// keeps its root directory locked until each has returned.
type DeviceHolder interface {
	// Hold holds the device at path, a bind mount of its node. Held already is
	// success.
	Hold(path string) error
	// Release ends the hold; none is success, also where path is gone.
	Release(path string) error
}

// loopHolder is the kubelet's way: a loop device.
type loopHolder struct{}

func (loopHolder) Hold(path string) error {
	_, err := loophold.Hold(path)
	return err
}

func (loopHolder) Release(path string) error { return loophold.Release(path) }

// holding makes one of the holder's calls.
func (m *Manager) holding(ctx context.Context, bind string, call func(path string) error) error {
	return m.reaches.Do(ctx, bind, func() error {
		done, err := m.keepRoot()
		if err != nil {
			return err
		}
		defer done()
		return call(bind)
	})
}

// deviceReplaced says that a pod's device is not the volume's any more.
func deviceReplaced(name, bind, device string) error {
	return &volume.Failure{
		Cause: ErrDeviceReplaced, Subject: name,
		What: fmt.Sprintf("volume %q is mapped, but %s is another device by now than the one that its pod has (bound at %s)", name, device, bind),
		Next: "tear the pod down, and find out who replaced the device",
	}
}

// mapping is a block volume on its way to a pod. On disk it is what the kubelet
// makes, in this order:
//
//	<global>/<podUID>                            the device's node, bound
//	/dev/loop<n>                                 holds that open
//	pods/<uid>/volumeDevices/<plugin~>/<name>    a link to the device
//
// The link comes last, since containers find the device by it.
type mapping struct {
	mapper volume.BlockVolumeMapper
	place  blockPlace
	device string // links resolved; empty until it is known
}

// blockPlace is where a pod's block volume is on disk.
type blockPlace struct{ global, bind, dir, link string }

func placeOf(v volume.BlockVolume, spec *volume.Spec, podUID types.UID) (blockPlace, error) {
	global, err := v.GetGlobalMapPath(spec)
	if err != nil {
		return blockPlace{}, err
	}
	dir, name := v.GetPodDeviceMapPath()
	return blockPlace{global: global, bind: filepath.Join(global, string(podUID)), dir: dir, link: filepath.Join(dir, name)}, nil
}

// prepareBlock is the part of prepare that block volumes have for themselves.
func (u *setUp) prepareBlock(plugin volume.VolumePlugin, spec *volume.Spec) error {
	able, err := blockPlugin(plugin, spec)
	if err != nil {
		return err
	}
	mapper, err := able.NewBlockVolumeMapper(spec, u.pod)
	if err != nil {
		return err
	}
	place, err := placeOf(mapper, spec, u.pod.UID)
	if err != nil {
		return err
	}
	u.mapping = &mapping{mapper: mapper, place: place}
	u.record.Path = place.link
	return nil
}

func blockPlugin(plugin volume.VolumePlugin, spec *volume.Spec) (volume.BlockVolumePlugin, error) {
	able, ok := volume.AsBlock(plugin)
	if !ok {
		return nil, &volume.UnsupportedError{Volume: spec.Name(), Type: "volumeMode Block",
			Reason: plugin.GetPluginName() + " has no devices", Replacement: "use volumeMode Filesystem"}
	}
	return able, nil
}

// mapDevice publishes the device, which is staged, to the pod. Each step finds
// what an earlier attempt has done.
func (m *Manager) mapDevice(ctx context.Context, u *setUp) error {
	spec := u.record.Spec()
	published, err := u.mapping.mapper.MapPodDevice(ctx)
	if err != nil {
		return u.device.failed("MapPodDevice", spec, err)
	}
	if published == "" {
		published = m.attachedPath(u.device.device)
	}
	if published == "" {
		return u.device.failed("MapPodDevice", spec, errors.New("device path of the volume is empty"))
	}
	if err := m.publishDevice(ctx, u, published); err != nil {
		return u.device.failed("MapBlockVolume", spec, err)
	}
	return nil
}

// publishDevice does for every plugin what MapBlockVolume does in the kubelet.
func (m *Manager) publishDevice(ctx context.Context, u *setUp, published string) error {
	place := u.mapping.place
	node, err := m.resolveNode(ctx, published)
	if err != nil {
		return err
	}
	if err := m.bindDevice(ctx, u, node); err != nil {
		return err
	}
	if err := m.holding(ctx, place.bind, m.config.DeviceHolder.Hold); err != nil {
		return fmt.Errorf("the device cannot be kept from being replaced: %w", err)
	}
	if err := linkTo(node, place); err != nil {
		return err
	}
	u.mapping.device = node
	return nil
}

// resolveNode resolves the links that lead to a device, which may lie anywhere.
func (m *Manager) resolveNode(ctx context.Context, path string) (string, error) {
	node := make(chan string, 1)
	err := m.reaches.Do(ctx, path, func() error {
		resolved, err := filepath.EvalSymlinks(path)
		node <- resolved
		return err
	})
	if err != nil {
		return "", err
	}
	return <-node, nil
}

func (m *Manager) bindDevice(ctx context.Context, u *setUp, node string) error {
	bind := u.mapping.place.bind
	bound, err := m.isMountPoint(bind)
	if err != nil {
		return err
	}
	if bound {
		return m.checkBound(ctx, u, node)
	}
	// What is there is of an earlier attempt; if it is something else, the mount
	// says so.
	if err := podmount.MakePoint(bind, false); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return mount.Mount(ctx, m.host.Mounter, mount.Request{Source: node, Target: bind, Options: []string{"bind"}})
}

// checkBound refuses to call another device the pod's.
func (m *Manager) checkBound(ctx context.Context, u *setUp, node string) error {
	same := make(chan bool, 1)
	err := m.reaches.Do(ctx, u.mapping.place.bind, func() error {
		has, err := deviceNumber(u.mapping.place.bind)
		if err != nil {
			return err
		}
		is, err := deviceNumber(node)
		same <- has == is
		return err
	})
	if err != nil {
		return err
	}
	if !<-same {
		return deviceReplaced(u.record.Volumes[0], u.mapping.place.bind, node)
	}
	return nil
}

func deviceNumber(path string) (uint64, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Stat(path, &st) }); err != nil {
		return 0, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return uint64(st.Rdev), nil
}

// linkTo makes the pod's link. One that leads elsewhere is of an earlier
// attempt, when the device had another name; it is replaced in one step, so that
// containers always find a device.
func linkTo(node string, place blockPlace) error {
	if err := os.MkdirAll(place.dir, 0o750); err != nil {
		return err
	}
	err := os.Symlink(node, place.link)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	was, err := os.Readlink(place.link)
	switch {
	case err != nil:
		return fmt.Errorf("what is at the place of the pod's device is no link; find out who put it there, and remove it: %w", err)
	case was == node:
		return nil
	}
	return replaceLink(node, place)
}

// replaceLink makes the link beside the bind, where nobody takes it for a
// volume, and renames it to its place. What a crash leaves goes with the next
// attempt, or when the device is taken from the pod.
func replaceLink(node string, place blockPlace) error {
	if err := unlink(place.newLink()); err != nil {
		return err
	}
	if err := os.Symlink(node, place.newLink()); err != nil {
		return err
	}
	return os.Rename(place.newLink(), place.link)
}

func (p blockPlace) newLink() string { return p.bind + ".link" }

// mappedDevice is what the confirmation says of a block volume.
func (u *setUp) mappedDevice() *mountrecord.MappedDevice {
	if u.mapping == nil {
		return nil
	}
	return &mountrecord.MappedDevice{Node: u.mapping.device, Bind: u.mapping.place.bind}
}

func equalDevices(a, b *mountrecord.MappedDevice) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// deviceNodeOf is the device of a recorded block volume that is mapped.
func deviceNodeOf(r *mountrecord.Record) string {
	if r.Confirmed == nil || r.Confirmed.Device == nil {
		return ""
	}
	return r.Confirmed.Device.Node
}
