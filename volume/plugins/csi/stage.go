package csi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/machinedir"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/plugins/csi/internal/csivolume"
	"github.com/podvol/podvol/volume/plugins/csi/internal/drivers"
	"github.com/podvol/podvol/volume/plugins/csi/internal/staged"
)

// CanDeviceMount is true for persistent file systems: whether their driver stages, only
// the driver knows. For one that does not, a device mount makes its directory and no call.
func (p *Plugin) CanDeviceMount(spec *volume.Spec) (bool, error) {
	if s, err := p.Source(spec); err == nil && s.IsNothing() {
		return false, nil
	}
	s, err := csivolume.Checked(&p.Kind, spec)
	return err == nil && !s.Inline && !spec.IsBlock(), err
}

// NewDeviceMounter implements [volume.DeviceMountableVolumePlugin].
func (p *Plugin) NewDeviceMounter() (volume.DeviceMounter, error) { return &device{p}, nil }

// NewDeviceUnmounter implements [volume.DeviceMountableVolumePlugin].
func (p *Plugin) NewDeviceUnmounter() (volume.DeviceUnmounter, error) { return &device{p}, nil }

// GetDeviceMountRefs implements [volume.DeviceMountableVolumePlugin].
func (p *Plugin) GetDeviceMountRefs(deviceMountPath string) (refs []string, err error) {
	mounts := table.Of(p.Host.GetMounter())
	own, mounted, err := mounts.At(deviceMountPath)
	if err != nil || !mounted {
		return nil, err
	}
	same, err := mounts.ByDevice(own.Device)
	for _, e := range same {
		if e.Target != own.Target && e.Root == own.Root {
			refs = append(refs, e.Target)
		}
	}
	return refs, err
}

// device stages file systems.
type device struct{ plugin *Plugin }

// GetDeviceMountPath returns the kubelet's directory of the volume's driver and handle.
func (d *device) GetDeviceMountPath(spec *volume.Spec) (string, error) {
	s, err := csivolume.Checked(&d.plugin.Kind, spec)
	if err != nil {
		return "", err
	}
	d.plugin.known.remember(d.plugin, spec, s)
	return d.plugin.disk.GlobalMount(s), nil
}

// MountDevice stages the volume by NodeStageVolume, if its driver stages. It calls the
// driver also if the volume is staged already, since only the driver knows whether that
// is complete.
func (d *device) MountDevice(ctx context.Context, spec *volume.Spec, _, deviceMountPath string, args volume.DeviceMounterArgs) error {
	s, err := csivolume.Checked(&d.plugin.Kind, spec)
	switch {
	case err == nil && s.Inline:
		err = volume.Invalid("csi", "is an inline volume, which is not staged")
	case err == nil && deviceMountPath == "":
		err = volume.Invalid("deviceMountPath", "must not be empty")
	}
	if err != nil {
		return csivolume.Failed("MountDevice", spec.Name(), err)
	}
	w := &volumeRequest{spec: spec, source: s, group: args.FsGroup, label: args.SELinuxLabel}
	data := &volData{VolumeHandle: s.Handle, DriverName: s.Driver, SELinux: args.SELinuxLabel}
	return csivolume.Failed("MountDevice", spec.Name(), d.plugin.stage(ctx, w, deviceMountPath, filepath.Dir(deviceMountPath), data))
}

// prepare finds out all that a call needs before it, so that failures have done nothing.
func (p *Plugin) prepare(ctx context.Context, w *volumeRequest) (*drivers.Driver, *drivers.Session, error) {
	d, err := p.drivers.Get(w.source.Driver)
	if err != nil {
		return nil, nil, err
	}
	if w.driverSpec, err = p.driverSpecOf(ctx, w.source.Driver); err != nil {
		return nil, nil, err
	}
	if err := w.driverSpec.checkLifecycle(w.source); err != nil {
		return nil, nil, err
	}
	s, err := p.drivers.Session(ctx, d)
	return d, s, err
}

// stage has a volume staged at a place. The data goes to disk before.
func (p *Plugin) stage(ctx context.Context, w *volumeRequest, place, dataDir string, data *volData) error {
	d, s, err := p.prepare(ctx, w)
	if err != nil {
		return err
	}
	stages := s.Has(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	if !stages && w.spec.IsBlock() {
		return nil
	}
	r := &csi.NodeStageVolumeRequest{VolumeId: w.source.Handle, StagingTargetPath: place, VolumeContext: w.source.Attributes}
	if r.VolumeCapability, err = w.capability(s); err != nil {
		return err
	}
	if stages {
		if r.Secrets, err = csivolume.Secrets(ctx, p.Host, w.source.Stage, "NodeStageVolume"); err != nil {
			return err
		}
	}
	var op *staged.Op
	if stages {
		if op, err = p.enterStaged(d, w.source.Handle, place); err != nil {
			return err
		}
		defer op.End()
	}
	fresh, err := writeData(dataDir, data)
	if err != nil {
		return volume.NothingDone(err)
	}
	if err := p.disk.makePlace(place); err != nil {
		return volume.NothingDone(err)
	}
	undo := func() error {
		p.leaveStaged(op, d, place)
		p.known.detach(place)
		return p.disk.removePlace(place, dataDir)
	}
	// What is there now keeps the volume attached, from here on.
	if r.PublishContext, err = stillAttached(ctx, p, d, w, op, place, true); err != nil || !stages {
		return p.settle(err, fresh, place, undo)
	}
	err = p.drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodeStageVolume", Volume: r.VolumeId, Secret: csivolume.ValuesOf(r.Secrets), Migrated: w.spec.Migrated}, func(ctx context.Context, s *drivers.Session) error {
		_, err := s.Node.NodeStageVolume(ctx, r)
		return err
	})
	return p.settle(err, fresh, place, undo)
}

// stillAttached returns the metadata of the volume's attachment. Detaching begins before it
// looks for what is staged or published, and this looks for it once that is noted: so one of
// the two sees the other. The caller has op in the table of all programs, or none.
func stillAttached(ctx context.Context, p *Plugin, d *drivers.Driver, w *volumeRequest, op *staged.Op, place string, anew bool) (map[string]string, error) {
	busy, err := staged.Table{Dir: p.disk.OpsDir()}.IsBusy(staged.Name(d.Name, w.source.Handle, ""))
	if err == nil && !busy && op == nil {
		busy, err = p.staged.IsBusy(staged.Name(d.Name, w.source.Handle, d.Socket))
	}
	if busy {
		err = &volume.Failure{Cause: ErrNotAttached, Subject: w.source.Handle, What: fmt.Sprintf("volume %.128q of driver %s is being detached", w.source.Handle, d.Name)}
	}
	if err != nil {
		return nil, volume.NothingDone(err)
	}
	return p.publishContext(ctx, w, place, anew)
}

// enterStaged begins to stage the volume, or to unstage it, and notes where, unless it is staged
// elsewhere. A table that cannot be written keeps no volume from its pod: it is there for other
// programs' sake.
func (p *Plugin) enterStaged(d *drivers.Driver, handle, place string) (*staged.Op, error) {
	op, err := p.staged.Begin(staged.Name(d.Name, handle, d.Socket))
	if errors.Is(err, machinedir.ErrBusy) {
		return nil, volume.NothingDone(&volume.Failure{Cause: ErrStagedElsewhere, Err: err, Subject: handle,
			What: fmt.Sprintf("another program of this machine is staging, unstaging or detaching volume %.128q of driver %s", handle, d.Name)})
	}
	elsewhere := ""
	if err == nil {
		elsewhere, err = op.Enter(place)
	}
	if err != nil {
		p.config.Logger.Debug("other programs cannot be told that a volume is staged", "driver", d.Name, "error", err)
	}
	if elsewhere == "" {
		return op, nil
	}
	op.End()
	return nil, volume.NothingDone(&volume.Failure{Cause: ErrStagedElsewhere, Subject: handle,
		What: fmt.Sprintf("volume %.128q of driver %s is staged at %s, below another root directory, and a driver stages a volume at one place of a machine", handle, d.Name, elsewhere),
		Next: fmt.Sprintf("let all its pods use that root directory, or wait until it is not used there any more; if a program that was killed has left that one, tear it down (podvol fsck --repair does so), or remove the directory if nothing is mounted there; if that was in a mount namespace that is gone, remove %s", p.staged.EntryOf(staged.Name(d.Name, handle, d.Socket)))})
}

// leaveStaged notes that the volume is not staged any more.
func (p *Plugin) leaveStaged(op *staged.Op, d *drivers.Driver, place string) {
	if err := op.Leave(place); err != nil {
		p.config.Logger.Debug("other programs cannot be told that a volume is unstaged", "driver", d.Name, "error", err)
	}
}

// makePlace makes a directory for the driver to mount on. What is mounted there is not
// touched.
func (d disk) makePlace(place string) error {
	mounted, err := d.isMounted(place)
	if err != nil || mounted {
		return err
	}
	_, err = podmount.MakeDir(place, dirMode)
	return err
}

// settle cleans up after a call that has staged or published nothing, and marks its error
// then. It does so only for the first call: what an earlier one may have left stays for
// the teardown, as does what is mounted all the same.
func (p *Plugin) settle(err error, fresh bool, place string, clean func() error) error {
	switch {
	case err == nil || volume.IsUncertain(err) && !drivers.IsRefusal(err):
		return err
	case !fresh:
		return err // marked if the call was not sent: then everything is as it was
	}
	if mounted, tableErr := p.disk.isMounted(place); mounted || tableErr != nil {
		return errors.Join(fmt.Errorf("something is mounted at %s all the same", place), tableErr, err)
	}
	if cleanErr := clean(); cleanErr != nil {
		return fmt.Errorf("%w; and cleaning up after it failed: %w", err, cleanErr)
	}
	return volume.NothingDone(err)
}

// UnmountDevice unstages the volume by NodeUnstageVolume, if its driver stages, and
// removes its directory. After an error the volume counts as staged in doubt: it must be
// staged again before it is published.
func (d *device) UnmountDevice(ctx context.Context, deviceMountPath string) error {
	dir := filepath.Dir(deviceMountPath)
	err := d.plugin.unstage(ctx, deviceMountPath, dir, knownKey{name: deviceMountPath})
	if err == nil {
		d.plugin.known.forgetDevice(deviceMountPath)
	}
	return csivolume.Failed("UnmountDevice", filepath.Base(dir), err)
}

func (p *Plugin) unstage(ctx context.Context, place, dataDir string, key knownKey) error {
	data, err := p.identifyLeft(place, "", dataDir, key)
	if err != nil {
		return err
	}
	if data == nil {
		return p.disk.removeUnidentified(place, dataDir)
	}
	d, err := p.drivers.Get(data.DriverName)
	if err != nil {
		return err
	}
	s, err := p.drivers.Session(ctx, d)
	if err != nil {
		return err
	}
	var op *staged.Op
	if s.Has(csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME) {
		op, err = p.enterStaged(d, data.VolumeHandle, place)
		defer op.End()
		if err == nil {
			r := &csi.NodeUnstageVolumeRequest{VolumeId: data.VolumeHandle, StagingTargetPath: place}
			err = p.drivers.Do(ctx, drivers.Call{Driver: d, Method: "NodeUnstageVolume", Volume: r.VolumeId}, func(ctx context.Context, s *drivers.Session) error {
				_, err := s.Node.NodeUnstageVolume(ctx, r)
				return err
			})
		} else if p.staged.IsClear(place) && !errors.Is(err, machinedir.ErrBusy) {
			err = nil // the program that has it staged took it for not staged here
		}
		if err != nil {
			return err
		}
	}
	p.known.detach(place)
	if err := p.disk.removePlace(place, dataDir); err != nil {
		return err
	}
	p.leaveStaged(op, d, place)
	return nil
}
