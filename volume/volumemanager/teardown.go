package volumemanager

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"github.com/podvol/podvol/util/tracing"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/mountrecord"
	"github.com/podvol/podvol/volume/volumemanager/internal/devices"
	"github.com/podvol/podvol/volume/volumemanager/internal/rootdir"
)

// tearDown undoes a volume: it unbinds its sub-paths, acts, removes empty
// directories, lets go of the device, and last the record: nothing else leads a
// later owner there.
func (o *operationExecutor) tearDown(ctx context.Context, s *podVolume) error {
	if err := o.unapply(ctx, s, o.actual.of(s)); err != nil {
		o.noteDetached(s, o.actual.of(s), err)
		return err
	}
	o.actual.set(s, actualVolume{})
	return nil
}

// noteDetached remembers, and writes down, that a volume was detached lazily: it
// stays, with its record and its device, until the file system is gone. Until
// the note is on disk a crash lets the volume count as unmounted.
func (o *operationExecutor) noteDetached(s *podVolume, was actualVolume, err error) {
	detached, ok := errors.AsType[*lazyunmount.Error](err)
	if !ok || was.record == nil || detached == was.detached {
		return
	}
	is, record := was, *was.record
	record.Detached, record.Confirmed = detached.Detachment(time.Now()), nil
	is.record, is.detached = &record, detached
	line, err := mountrecord.Encode(&record)
	if err == nil {
		is.digest = rootdir.DigestOf(line)
		err = o.records.Write(was.key, line)
	}
	if err != nil {
		o.log.Warn("a volume that was detached while it may be in use could not be recorded as such; after a restart it counts as unmounted", "podUID", was.key.PodUID, "volume", was.key.Spec, "error", err)
	}
	o.actual.set(s, is)
}

func (o *operationExecutor) unapply(ctx context.Context, s *podVolume, was actualVolume) error {
	if was.unreadable != nil {
		return volume.NothingDone(was.unreadable)
	}
	detached := was.detached
	if detached != nil {
		switch left, err := o.partlyMounted(was); {
		case err != nil:
			return alsoDetached(detached, err)
		case !left && detached.InUse():
			return detached
		}
	}
	plugin, err := o.plugins.FindPluginByName(was.key.Plugin)
	if err != nil {
		return volume.NothingDone(err)
	}
	var left error // with its record: nothing else would lead there again
	if !was.unpublished {
		if err := o.unpublish(ctx, was, plugin, detached); err != nil {
			return err
		}
		if left = o.removeEmptyDirs(ctx, s); left == nil && was.device.HasPlace() {
			o.actual.unpublished(s)
		}
	}
	if err := o.needs.unstage(ctx, s, was, plugin); err != nil {
		return err
	}
	if left != nil {
		return left
	}
	return tracing.Step(ctx, "record", func(context.Context) error { return o.records.Release(was.key, was.record) })
}

// unpublish takes the volume from its pod; its device, if it has one, stays.
func (o *operationExecutor) unpublish(ctx context.Context, was actualVolume, plugin volume.VolumePlugin, detached *lazyunmount.Error) error {
	more, err := o.containers.Unbind(ctx, subPathsOf(was.key))
	detached = podmount.JoinDetached(detached, more)
	if err == nil {
		err = tracing.Step(ctx, "plugin", func(ctx context.Context) error { return o.unmount(ctx, was, plugin) })
	}
	if err != nil {
		return alsoDetached(detached, err)
	}
	if detached != nil && detached.InUse() {
		return detached
	}
	return nil
}

// partlyMounted reports whether more of a volume is mounted than what was
// detached: something else has failed then.
func (o *operationExecutor) partlyMounted(was actualVolume) (bool, error) {
	mounted, err := rootdir.IsOwnMountPoint(o.host, was.record.Path)
	if err != nil || mounted {
		return mounted, err
	}
	parts, err := o.containers.Bound(subPathsOf(was.key))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(parts) > 0, err
}

// alsoDetached is a failure after something was detached, which no later
// attempt will see.
func alsoDetached(detached *lazyunmount.Error, err error) error {
	if detached == nil {
		return err
	}
	last, ok := errors.AsType[*lazyunmount.Error](err)
	if !ok {
		return errors.Join(detached, err)
	}
	detached = podmount.JoinDetached(detached, last)
	if podmount.IsDetached(err) {
		return detached
	}
	return errors.Join(detached, err)
}

// unmount undoes what the plugin's SetUp did for the pod.
func (o *operationExecutor) unmount(ctx context.Context, was actualVolume, plugin volume.VolumePlugin) error {
	if was.record.Spec().IsBlock() {
		return devices.Unmap(ctx, &o.blocks, plugin, was.record.Spec(), was.key.PodUID)
	}
	unmounter, err := plugin.NewUnmounter(was.key.Spec, was.key.PodUID)
	if err != nil {
		return err
	}
	return unmounter.TearDown(ctx)
}
