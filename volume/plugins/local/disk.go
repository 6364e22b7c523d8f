package local

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/localdisk"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// checkDisk makes sure that the disk at a volume's path is the one that the
// PersistentVolume names (annotation podvol.io/local-volume-id): another disk
// there is not podvol's, and without a mount a pod would write to the node's own
// disk. A PersistentVolume without the annotation has any disk at its path, as in
// Kubernetes.
func (p *plugin) checkDisk(ctx context.Context, pv *v1.PersistentVolume, isDevice bool) error {
	if localdisk.RecordedID(pv) == "" {
		return nil
	}
	if disks, err := volume.Role[volume.HostDisks](p.Host); err == nil {
		return disks.CheckDisk(ctx, pv)
	}
	if _, err := volume.Role[volume.HostFiles](p.Host); err == nil {
		return volume.Invalid("metadata.annotations."+localdisk.VolumeID, "cannot be checked: %v", errForeignFiles)
	}
	mounts := table.Of(p.Host.GetMounter())
	return p.looking.Do(ctx, pv.Spec.Local.Path, func() error {
		if isDevice {
			device, err := localdisk.OpenDevice(pv, p.config.System, unix.O_RDONLY)
			if err != nil {
				return err
			}
			return device.Close()
		}
		dir, _, err := localdisk.OpenFileSystem(mounts, pv, p.config.System)
		if err != nil {
			return err
		}
		return dir.Close()
	})
}

// setUp binds, and takes the bind off again where the disk was changed after it
// was checked.
func (m *mounter) setUp(ctx context.Context, request mount.Request, same func(mount.Entry) bool) error {
	host := m.Host.GetMounter()
	bind := func() error { return mount.Mount(ctx, host, request) }
	if localdisk.RecordedID(m.pv) != "" && request.Source == m.path {
		mounts := table.Of(host)
		checked, mounted, err := mounts.At(m.path)
		if err != nil {
			return volume.NothingDone(err)
		}
		bind = func() error {
			if err := m.plugin.checkDisk(ctx, m.pv, false); err != nil {
				return volume.NothingDone(err)
			}
			if err := mount.Mount(ctx, host, request); err != nil || !mounted {
				return err
			}
			bound, is, err := mounts.At(request.Target)
			if err == nil && (!is || bound.Device != checked.Device || bound.Root != checked.Root) {
				err = errors.New("the mount at its path changed during the check")
			}
			if err != nil {
				return fmt.Errorf("local.path %q: %w", m.path, err)
			}
			return nil
		}
	}
	_, err := podmount.SetUpBy(ctx, host, request, same, bind)
	return err
}
