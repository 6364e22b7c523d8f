package diskmount

import (
	"context"
	"fmt"
	"strings"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// Volume is a pod's bind of a disk's file system, or of a directory of it: a [volume.Unmounter].
type Volume struct {
	volume.PodVolume
	Disks *Disks
}

// GetMetrics returns the metrics of the file system.
func (v *Volume) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := podmount.Metrics(ctx, v.Host.GetMounter(), &v.Disks.meter, v.GetPath())
	return metrics, v.Error("GetMetrics", err)
}

// TearDown is [Volume.TearDownAt] the pod's own path.
func (v *Volume) TearDown(ctx context.Context) error { return v.TearDownAt(ctx, v.GetPath()) }

// TearDownAt never forces and never detaches: the file system is a disk's, and would live on
// unseen.
func (v *Volume) TearDownAt(ctx context.Context, dir string) error {
	return v.Error("TearDown", podmount.TearDown(ctx, v.Host.GetMounter(), dir, mount.UnmountOptions{}))
}

// Mounter is a [volume.Mounter] that binds the file system of a disk.
type Mounter struct {
	Volume
	// Device is where the disk is mounted for the node.
	Device string
	// Subject names the disk in errors.
	Subject  string
	ReadOnly bool
	// MountDevice mounts a disk that waits for a certain pod, unless it is mounted; nil: the
	// plugin's MountDevice has mounted it.
	MountDevice func(ctx context.Context, device string, args volume.DeviceMounterArgs) error
}

// GetAttributes reports Managed unless the volume is read-only.
func (m *Mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.ReadOnly, Managed: !m.ReadOnly, SELinuxRelabel: true}
}

// SetUp is [Mounter.SetUpAt] the pod's own path.
func (m *Mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt binds the mount of the disk, after it has given the files to the pod's fsGroup. A disk
// that is mounted read-only for others matches [volume.ErrInUse] for a pod that wants to write.
func (m *Mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	return m.Error("SetUp", m.bind(ctx, dir, args))
}

func (m *Mounter) bind(ctx context.Context, dir string, args volume.MounterArgs) error {
	request := mount.Request{Source: m.Device, Target: dir, Options: []string{"bind"}}
	if m.ReadOnly {
		request.Options = append(request.Options, "ro")
	}
	same := func(e mount.Entry) bool { return e.ReadOnly() || !m.ReadOnly }
	mounted, err := podmount.Mounted(m.Host.GetMounter(), request, same)
	if err != nil || mounted {
		return err
	}
	if m.MountDevice != nil {
		if err := m.MountDevice(ctx, m.Device, volume.DeviceMounterArgs{SELinuxLabel: args.SELinuxLabel, Progress: args.Progress}); err != nil {
			return err
		}
	}
	if err := m.checkDevice(); err != nil {
		return volume.NothingDone(err)
	}
	if err := m.Disks.owner.Set(ctx, m.Device, m.GetAttributes(), args); err != nil {
		return volume.NothingDone(err) // that tearing down could undo
	}
	_, err = podmount.SetUp(ctx, m.Host.GetMounter(), request, same)
	return err
}

// checkDevice looks at the mount of the disk.
func (m *Mounter) checkDevice() error {
	mounts := table.Of(m.Host.GetMounter())
	e, mounted, err := mounts.At(m.Device)
	switch {
	case err != nil:
		return err
	case !mounted:
		return fmt.Errorf("the file system of %s must be mounted at %s first (MountDevice): %w", m.Subject, m.Device, mount.ErrNotMounted)
	case e.ReadOnly() && !m.ReadOnly:
		return &volume.Failure{Cause: volume.ErrInUse, Subject: m.Subject, What: fmt.Sprintf("%s is mounted read-only at %s for another pod", m.Subject, m.Device),
			Next: "use the disk for reading only, or end the other pods"}
	}
	return nil
}

// DeviceOf returns where a disk is mounted whose file system is bound at dir, if the path of that
// begins with prefix; empty: it is not known.
func DeviceOf(m mount.Interface, dir, prefix string) (device string, bind mount.Entry, err error) {
	mounts := table.Of(m)
	bind, mounted, err := mounts.At(dir)
	if err != nil || !mounted {
		return "", bind, err
	}
	all, err := mounts.ByDevice(bind.Device)
	for _, e := range all {
		if e.Root == bind.Root && strings.HasPrefix(e.Target, prefix) {
			device = e.Target
		}
	}
	return device, bind, err
}
