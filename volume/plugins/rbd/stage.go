package rbd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/ceph"
	"github.com/podvol/podvol/volume/internal/diskmount"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/rbd/internal/krbd"
)

// CanDeviceMount reports whether the volume is a file system.
func (p *plugin) CanDeviceMount(spec *volume.Spec) (bool, error) {
	if _, err := p.checked(spec); err != nil {
		return false, err
	}
	return !spec.IsBlock(), nil
}

func (p *plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return &device{p}, nil }

func (p *plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return &device{p}, nil }

// GetDeviceMountRefs implements [volume.DeviceMountableVolumePlugin].
func (p *plugin) GetDeviceMountRefs(deviceMountPath string) ([]string, error) {
	return diskmount.Refs(p.Host.GetMounter(), deviceMountPath)
}

// device maps images and mounts their file systems.
type device struct{ plugin *plugin }

func (d *device) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	s, err := d.plugin.checked(spec)
	if err != nil {
		return "", err
	}
	return d.plugin.devicePath(s), nil
}

// MountDevice maps the image, unless it is, and mounts its file system; a blank image is given
// one before, as package format says. An inline volume is mounted by its pod's own SetUp, since
// the key is in the pod's namespace.
func (d *device) MountDevice(ctx context.Context, spec *volume.Spec, _, deviceMountPath string, args volume.DeviceMounterArgs) error {
	s, err := d.plugin.checked(spec)
	if err == nil && !s.key.IsInline {
		err = d.plugin.mountDevice(ctx, s, deviceMountPath, "", args)
	}
	return failed("MountDevice", spec.Name(), err)
}

// lock has an image for one caller.
func (p *plugin) lock(ctx context.Context, place string) (unlock func(), err error) {
	unlock, err = p.images.Lock(ctx, filepath.Base(place))
	if err != nil {
		return nil, volume.NothingDone(fmt.Errorf("another volume of the image is being mounted or unmounted: %w", err))
	}
	return unlock, nil
}

func (p *plugin) mountDevice(ctx context.Context, s *source, path, podNamespace string, args volume.DeviceMounterArgs) error {
	unlock, err := p.lock(ctx, path)
	if err != nil {
		return err
	}
	defer unlock()
	mounted, err := diskmount.IsMounted(p.Host.GetMounter(), path)
	if err != nil || mounted && !s.key.IsInline {
		return volume.NothingDone(err)
	}
	st := &staging{plugin: p, source: s, file: p.recordFile(path), place: path}
	if err := st.readKey(ctx, podNamespace); err != nil {
		return err
	}
	if mounted {
		return volume.NothingDone(st.checkKey())
	}
	found, err := st.mapImage(ctx, false)
	if err != nil {
		return st.undo(ctx, err)
	}
	if _, err = podmount.MakeDir(path, 0o750); err == nil {
		err = st.mount(ctx, found, args)
	}
	if err != nil {
		return st.undo(ctx, err)
	}
	return nil
}

// staging makes an image a disk of this node. Its caller has the image's lock.
type staging struct {
	plugin      *plugin
	source      *source
	key         string
	file, place string

	record *record
	isNew  bool // nothing of the volume was here
}

func (st *staging) readKey(ctx context.Context, podNamespace string) (err error) {
	p := st.plugin
	st.key, err = st.source.key.Key(ctx, p.Host, ceph.Files{Dir: p.config.KeyDir, Inline: p.config.InlineKeyFiles}, podNamespace)
	return err
}

// checkKey refuses a pod that has another key than the one by which the image was mapped: what
// its own would have shown is not known.
func (st *staging) checkKey() error {
	r, ok, err := readRecord(st.file)
	if err != nil || ok && r.Key == r.markOf(st.source.key.User, st.key) {
		return err
	}
	name := st.source.volumeName()
	return &volume.Failure{Cause: volume.ErrInUse, Subject: name, What: name + " is mounted on this node by another user or key", Next: "use the same one in all pods of the image"}
}

// mapImage makes the image a disk, after it has noted that in the record.
func (st *staging) mapImage(ctx context.Context, isBlock bool) (krbd.Device, error) {
	if err := st.takeRecord(ctx, isBlock); err != nil {
		return krbd.Device{}, volume.NothingDone(err)
	}
	monitors, err := ceph.Resolve(ctx, st.plugin.config.Resolver, st.source.monitors)
	if err != nil {
		return krbd.Device{}, err
	}
	s := st.source
	return st.plugin.client.Map(ctx, krbd.Request{Monitors: monitors, User: s.key.User, Key: st.key, Pool: s.pool, Image: s.image, Token: st.record.Token, ReadOnly: s.deviceReadOnly})
}

// takeRecord takes the record of a mapping over, or writes a new one. A mapping for other uses
// goes, unless it is in use.
func (st *staging) takeRecord(ctx context.Context, isBlock bool) error {
	before, ok, err := readRecord(st.file)
	if err != nil {
		return err
	}
	if ok && before.Block == isBlock && before.ReadOnly == st.source.deviceReadOnly && before.Key == before.markOf(st.source.key.User, st.key) {
		_, mapped, err := st.plugin.client.Find(before.Token)
		st.record, st.isNew = before, err == nil && !mapped // as after a boot
		return err
	}
	if ok {
		if err := st.release(ctx, before); err != nil {
			return err
		}
	}
	st.record, st.isNew = st.source.newRecord(st.key, isBlock), true
	return st.record.write(st.file)
}

// release unmaps what was mapped for another use, such as after a crash. Of a block volume it is
// not known whether a pod is about to open it.
func (st *staging) release(ctx context.Context, before *record) error {
	name := st.source.volumeName()
	_, mapped, err := st.plugin.client.Find(before.Token)
	if err != nil {
		return err
	}
	mounted, err := diskmount.IsMounted(st.plugin.Host.GetMounter(), filepath.Join(st.plugin.mountsDir(), filepath.Base(st.place)))
	if err != nil {
		return err
	}
	if mapped && (before.Block || mounted) {
		return &volume.Failure{Cause: volume.ErrInUse, Subject: name, What: name + " is in use on this node as another kind of volume, by another key, or read-only", Next: "end those pods, or use the image as they do"}
	}
	return st.plugin.client.Unmap(ctx, before.Token) // which waits for a call that was given up
}

// mount mounts the disk. Its name is given to the next image once nothing has it open; so the
// mapping is looked at again while this has.
func (st *staging) mount(ctx context.Context, found krbd.Device, args volume.DeviceMounterArgs) error {
	held, err := st.plugin.hold(ctx, found.Path)
	if err != nil {
		return volume.NothingDone(err)
	}
	defer held.Close()
	now, mapped, err := st.plugin.client.Find(st.record.Token)
	if err == nil && (!mapped || now.ID != found.ID) {
		err = fmt.Errorf("the image was unmapped meanwhile: %w", fs.ErrNotExist)
	}
	if err == nil {
		err = checkNumber(held, found)
	}
	if err != nil {
		return volume.NothingDone(err)
	}
	return st.plugin.disks.Mount(ctx, st.plugin.Host.GetMounter(), st.source.mountRequest(found.Path, st.place), args.SELinuxLabel, args.Progress)
}

// checkNumber refuses a file in /dev that is not the disk.
func checkNumber(held *os.File, found krbd.Device) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(held.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: found.Path, Err: err}
	}
	if found.Number != 0 && (st.Mode&unix.S_IFMT != unix.S_IFBLK || uint64(st.Rdev) != found.Number) {
		return fmt.Errorf("%s is not the disk %d:%d: %w", found.Path, unix.Major(found.Number), unix.Minor(found.Number), fs.ErrNotExist)
	}
	return nil
}

// hold opens a disk, which may take as long as its cluster likes.
func (p *plugin) hold(ctx context.Context, path string) (*os.File, error) {
	opened := make(chan *os.File, 1)
	err := p.opening.Do(ctx, path, func() error {
		defer close(opened)
		f, err := os.Open(path)
		if err == nil {
			opened <- f
		}
		return err
	})
	if err == nil {
		return <-opened, nil
	}
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && abandoned.Started {
		go func() { (<-opened).Close() }() // of a nil file, which does nothing, where it failed
	}
	return nil, err
}

const undoTimeout = 20 * time.Second

// undo gives back what this staging has added, after it has failed, and no more: an earlier one
// may serve a pod. The error is marked where nothing was left and nothing goes on; else the
// volume is torn down in the end, by its record.
func (st *staging) undo(ctx context.Context, failure error) error {
	if !st.isNew {
		return failure
	}
	if ended := ctx.Err(); ended != nil && volume.IsUncertain(failure) {
		return failure
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	if err := st.plugin.unstage(ctx, st.place); err != nil {
		return errors.Join(failure, fmt.Errorf("cleaning up after it failed: %w", err))
	}
	return diskmount.Certain(failure)
}

// UnmountDevice unmounts the file system, never by force, and then unmaps the image. It succeeds
// if nothing is there. A disk in use stays: the error matches [volume.ErrInUse].
func (d *device) UnmountDevice(ctx context.Context, deviceMountPath string) error {
	return failed("UnmountDevice", filepath.Base(deviceMountPath), d.plugin.unmountDevice(ctx, deviceMountPath))
}

func (p *plugin) unmountDevice(ctx context.Context, path string) error {
	if !p.isPlace(path) {
		return volume.Invalid("deviceMountPath", "%q is not where this plugin mounts", path)
	}
	unlock, err := p.lock(ctx, path)
	if err != nil {
		return err
	}
	defer unlock()
	refs, err := p.GetDeviceMountRefs(path)
	if err == nil && len(refs) > 0 {
		err = fmt.Errorf("the disk is mounted at %s, too: %w", refs[0], volume.ErrInUse)
	}
	if err != nil {
		return volume.NothingDone(err)
	}
	return p.unstage(ctx, path)
}

// unstage undoes mountDevice, or what there is of it. The caller has the image's lock.
func (p *plugin) unstage(ctx context.Context, place string) error {
	if err := podmount.UnmountAll(ctx, p.Host.GetMounter(), place, mount.UnmountOptions{}); err != nil {
		return err
	}
	file := p.recordFile(place)
	r, ok, err := readRecord(file)
	if err != nil {
		return err
	}
	isOurs := ok && r.Block == (filepath.Dir(place) == p.blockDir()) // else it is the other kind's
	if isOurs {
		if err := p.client.Unmap(ctx, r.Token); err != nil {
			return err
		}
	}
	if err := podmount.RemoveDir(place); err != nil {
		return err
	}
	if isOurs {
		if err := removeRecord(file); err != nil {
			return err
		}
	}
	return p.removeParents(place)
}

// removeParents removes the directories above a place that hold nothing else.
func (p *plugin) removeParents(place string) error {
	for _, dir := range []string{filepath.Dir(place), p.mountsDir(), p.Host.GetPluginDir(PluginName), filepath.Dir(p.Host.GetPluginDir(PluginName))} {
		err := podmount.RemoveDir(dir)
		if _, used := errors.AsType[*podmount.NotEmptyError](err); used {
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
