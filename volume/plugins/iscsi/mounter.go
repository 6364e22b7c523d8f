package iscsi

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// isCHAPText reports whether a line of open-iscsi's records can hold a value.
func isCHAPText(s string) bool {
	return len(s) <= maxCHAP && strings.TrimSpace(s) == s && !strings.ContainsFunc(s, unicode.IsControl)
}

// bound is what mounter and unmounter have in common.
type bound struct {
	volume.PodVolume
	plugin *plugin
}

// GetMetrics returns the metrics of the disk's file system.
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

// SetUpAt binds what MountDevice has mounted, after it has given the files to the pod's
// fsGroup.
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
	if m.source.waitsForPod() {
		if err := m.plugin.mountDevice(ctx, m.source, m.Name, device, m.namespace, volume.DeviceMounterArgs{SELinuxLabel: args.SELinuxLabel, Progress: args.Progress}); err != nil {
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
	switch {
	case err != nil:
		return err
	case !mounted:
		return fmt.Errorf("the file system of %s must be mounted at %s first (MountDevice): %w", m.source.volumeName(), device, mount.ErrNotMounted)
	case e.ReadOnly() && !m.source.readOnly:
		return &volume.Failure{Cause: volume.ErrInUse, Subject: m.source.volumeName(), What: fmt.Sprintf("%s is mounted read-only at %s for another pod", m.source.volumeName(), device),
			Next: "use the disk for reading only, or end the other pods"}
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
