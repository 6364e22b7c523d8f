// Package diskmount formats, mounts, binds and grows disks of the node, for the plugins that have
// disks: local, iscsi, rbd and flexvolume. A disk is mounted once, at a place of the plugin's, and
// bound into pods from there.
package diskmount

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fsgroup"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/meter"
	"github.com/podvol/podvol/volume/selinux"
)

// Formatter makes, mounts and grows file systems, as [format.Formatter] does.
type Formatter interface {
	FormatAndMount(ctx context.Context, r format.Request) (format.Result, error)
	Resize(ctx context.Context, device, mountPoint string) (grown bool, err error)
}

// Disks are the disks of one plugin. The zero value formats by the mounter that it is given
// first. It is safe for concurrent use.
type Disks struct {
	// Formats replaces this node's; it is set before the first call.
	Formats Formatter

	once  sync.Once
	meter meter.Meter
	owner fsgroup.Setter
}

func (d *Disks) formatter(m mount.Interface) Formatter {
	d.once.Do(func() {
		if d.Formats == nil {
			d.Formats = format.New(format.Config{Mounter: m})
		}
	})
	return d.Formats
}

// Mount mounts the disk at request.Source, which is given a file system before if it is blank,
// as package format says. All its files have the SELinux label, if that is not empty. The
// directory is the caller's to make, and to remove after an error: see [Certain].
func (d *Disks) Mount(ctx context.Context, m mount.Interface, request mount.Request, label string, progress func(volume.Progress)) error {
	request.Options = selinux.AddMountOption(request.Options, label)
	r := format.Request{Request: request}
	if progress != nil {
		r.Progress = func(doing string) { progress(volume.Progress{Doing: doing}) }
	}
	_, err := d.formatter(m).FormatAndMount(ctx, r)
	return err
}

// IsMounted reports whether something is mounted at a place. The table may name a disk by
// another path than a volume does.
func IsMounted(m mount.Interface, path string) (bool, error) {
	return podmount.Mounted(m, mount.Request{Target: path}, func(mount.Entry) bool { return true })
}

// Certain marks the error of [Disks.Mount] by [volume.NothingDone], after everything was
// undone, unless a program goes on.
func Certain(failure error) error {
	if e, ok := errors.AsType[*format.Error](failure); ok && e.Uncertain {
		return failure
	}
	if e, ok := errors.AsType[*mount.Error](failure); ok && e.Uncertain {
		return failure
	}
	return volume.NothingDone(failure)
}

// Grow grows the file system of a disk to all of it, while it is mounted. It is idempotent.
//
//   - A type that cannot grow here, and a missing program, match [volume.ErrResizeInfeasible].
//   - A kernel that refuses to grow a mounted file system, as it does with ext4 and an agent
//     without CAP_SYS_RESOURCE, matches [volume.ErrResizeInUse].
func (d *Disks) Grow(ctx context.Context, m mount.Interface, disk, mountPoint string) error {
	if mountPoint == "" {
		return volume.NothingDone(volume.Invalid("DeviceMountPath", "the place of the file system is needed to grow it"))
	}
	_, err := d.formatter(m).Resize(ctx, disk, mountPoint)
	failed, ok := errors.AsType[*format.Error](err)
	switch {
	case !ok:
		return err
	case errors.Is(err, format.ErrNotSupported), errors.Is(err, format.ErrToolMissing):
		return volume.NothingDone(fmt.Errorf("%w: %w", volume.ErrResizeInfeasible, failed))
	case failed.IsRefusedOnline():
		return volume.NothingDone(fmt.Errorf("%w: %w", volume.ErrResizeInUse, failed))
	}
	return err
}

// Refs are the other places of the file system that is mounted at path, or of a part of it.
func Refs(m mount.Interface, path string) (refs []string, err error) {
	mounts := table.Of(m)
	own, mounted, err := mounts.At(path)
	if err != nil || !mounted {
		return nil, err
	}
	all, err := mounts.ByDevice(own.Device)
	for _, e := range all {
		if e.Target != own.Target && pathin.In(own.Root, e.Root) {
			refs = append(refs, e.Target)
		}
	}
	return refs, err
}
