package faultymount

import (
	"context"

	"github.com/podvol/podvol/mount"
)

// The plain methods of [mount.Interface] go through MountContext and
// UnmountContext, without a deadline: else a plugin that calls them would not
// be counted, and would not meet a fault.

// Mount implements [mount.Interface].
func (m *Kernel) Mount(source, target, fstype string, options []string) error {
	return m.MountSensitive(source, target, fstype, options, nil)
}

// MountSensitive implements [mount.Interface].
func (m *Kernel) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	return m.MountContext(context.Background(), mount.Request{
		Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive,
	})
}

// MountSensitiveWithoutSystemd is MountSensitive.
func (m *Kernel) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return m.MountSensitive(source, target, fstype, options, sensitive)
}

// MountSensitiveWithoutSystemdWithMountFlags is MountSensitive; the flags are
// those of a command.
func (m *Kernel) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, _ []string) error {
	return m.MountSensitive(source, target, fstype, options, sensitive)
}

// Unmount implements [mount.Interface]: the normal rung.
func (m *Kernel) Unmount(target string) error {
	_, err := m.UnmountContext(context.Background(), target, mount.UnmountOptions{})
	return err
}
