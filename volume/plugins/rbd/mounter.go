package rbd

import (
	"context"
	"fmt"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// bound is what mounter and unmounter have in common.
type bound struct {
	volume.PodVolume
	plugin *plugin
}

// GetMetrics returns the metrics of the image's file system.
func (b *bound) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	metrics, err := podmount.Metrics(ctx, b.Host.GetMounter(), &b.plugin.meter, b.GetPath())
	return metrics, b.Error("GetMetrics", err)
}

type mounter struct {
	bound
	source    *source
	namespace string // the pod's
}

// GetAttributes reports Managed unless the volume is read-only.
func (m *mounter) GetAttributes() volume.Attributes {
	return volume.Attributes{ReadOnly: m.source.readOnly, Managed: !m.source.readOnly, SELinuxRelabel: true}
}

func (m *mounter) SetUp(ctx context.Context, args volume.MounterArgs) error {
	return m.SetUpAt(ctx, m.GetPath(), args)
}

// SetUpAt binds what MountDevice has mounted, after it has given the files to the pod's fsGroup.
// An inline volume is mounted before, by the key of its pod.
func (m *mounter) SetUpAt(ctx context.Context, dir string, args volume.MounterArgs) error {
	return m.Error("SetUp", m.bind(ctx, dir, args))
}

func (m *mounter) bind(ctx context.Context, dir string, args volume.MounterArgs) error {
	device := m.plugin.devicePath(m.source)
	request := mount.Request{Source: device, Target: dir, Options: []string{"bind"}}
	if m.source.readOnly {
		request.Options = append(request.Options, "ro")
	}
	same := func(e mount.Entry) bool { return e.ReadOnly() || !m.source.readOnly }
	mounted, err := podmount.Mounted(m.Host.GetMounter(), request, same)
	if err != nil || mounted {
		return err
	}
	if m.source.key.IsInline {
		if err := m.plugin.mountDevice(ctx, m.source, device, m.namespace, volume.DeviceMounterArgs{SELinuxLabel: args.SELinuxLabel, Progress: args.Progress}); err != nil {
			return err
		}
	}
	if err := m.checkDevice(device); err != nil {
		return volume.NothingDone(err)
	}
	if err := m.plugin.owner.Set(ctx, device, m.GetAttributes(), args); err != nil {
		return volume.NothingDone(err) // that tearing down could undo
	}
	_, err = podmount.SetUp(ctx, m.Host.GetMounter(), request, same)
	return err
}

// checkDevice looks at the mount of the device.
func (m *mounter) checkDevice(device string) error {
	mounts := table.Of(m.Host.GetMounter())
	e, mounted, err := mounts.At(device)
	name := m.source.volumeName()
	switch {
	case err != nil:
		return err
	case !mounted:
		return fmt.Errorf("the file system of %s must be mounted at %s first (MountDevice): %w", name, device, mount.ErrNotMounted)
	case e.ReadOnly() && !m.source.readOnly:
		return &volume.Failure{Cause: volume.ErrInUse, Subject: name, What: fmt.Sprintf("%s is mounted read-only at %s for another pod", name, device),
			Next: "use the image for reading only, or end the other pods"}
	}
	return nil
}

type unmounter struct{ bound }

func (u *unmounter) TearDown(ctx context.Context) error { return u.TearDownAt(ctx, u.GetPath()) }

// TearDownAt never forces and never detaches: the file system is a disk's, and would live on
// unseen.
func (u *unmounter) TearDownAt(ctx context.Context, dir string) error {
	return u.Error("TearDown", podmount.TearDown(ctx, u.Host.GetMounter(), dir, mount.UnmountOptions{}))
}
