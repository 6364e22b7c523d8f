package intree

import (
	"context"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// cleanupTime is what an unmount gets whose context has ended.
const cleanupTime = 5 * time.Second

// WithContext gives the plain methods of a mounter a context: Mount and its kin
// return when ctx ends, as [mount.Mount] does. Unmount does too, but has five
// seconds more, so that a failed set-up can clean up after itself. It is for the
// call that ctx was given to, and is not kept. Mount flags, which belong to a
// command, are left out.
func WithContext(ctx context.Context, mounter mount.Interface) mount.Interface {
	return &inContext{mounter, ctx}
}

// inContext holds a context, as a value that lives no longer than one call.
type inContext struct {
	mount.Interface
	ctx context.Context
}

var (
	_ mount.ContextMounter = (*inContext)(nil)
	_ table.Tabler         = (*inContext)(nil)
)

// Unwrap returns the mounter that was given the context.
func (m *inContext) Unwrap() mount.Interface { return m.Interface }

// Table implements [table.Tabler].
func (m *inContext) Table() mount.Table { return table.Of(m.Interface) }

// MountContext implements [mount.ContextMounter], in the context of its caller.
func (m *inContext) MountContext(ctx context.Context, r mount.Request) error {
	return mount.Mount(ctx, m.Interface, r)
}

// UnmountContext implements [mount.ContextMounter], in the context of its caller.
func (m *inContext) UnmountContext(ctx context.Context, target string, o mount.UnmountOptions) (mount.Rung, error) {
	return mount.Unmount(ctx, m.Interface, target, o)
}

func (m *inContext) Mount(source, target, fstype string, options []string) error {
	return m.MountSensitive(source, target, fstype, options, nil)
}

func (m *inContext) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	return mount.Mount(m.ctx, m.Interface, mount.Request{Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive})
}

func (m *inContext) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return m.MountSensitive(source, target, fstype, options, sensitive)
}

func (m *inContext) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, _ []string) error {
	return m.MountSensitive(source, target, fstype, options, sensitive)
}

func (m *inContext) Unmount(target string) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(m.ctx))
	defer cancel()
	stop := context.AfterFunc(m.ctx, func() { time.AfterFunc(cleanupTime, cancel) })
	defer stop()
	_, err := mount.Unmount(ctx, m.Interface, target, mount.UnmountOptions{})
	return err
}

// UnmountPath takes every mount off a volume's directory and removes it, if it is
// empty: nothing is ever deleted but an empty directory. Not mounted and not
// there are success; a directory that is not empty is an error. It asks the mount
// table alone, so that no server can block it.
func UnmountPath(ctx context.Context, mountPath string, mounter mount.Interface) error {
	return podmount.TearDown(ctx, mounter, mountPath, mount.UnmountOptions{})
}

// UnmountMountPoint is [UnmountPath]: the table is always read, which the
// tree calls an extensive check.
func UnmountMountPoint(ctx context.Context, mountPath string, mounter mount.Interface, extensiveMountPointCheck bool) error {
	return UnmountPath(ctx, mountPath, mounter)
}

// CleanupMountPoint is mount-utils' [UnmountMountPoint].
func CleanupMountPoint(ctx context.Context, mountPath string, mounter mount.Interface, extensiveMountPointCheck bool) error {
	return UnmountPath(ctx, mountPath, mounter)
}

// CleanupMountWithForce is [CleanupMountPoint] that forces the unmount where the
// normal one has not succeeded after unmountTimeout. Mount-utils' forces it also
// while other mounts of the same file system are used; see [mount.UnmountOptions].
func CleanupMountWithForce(ctx context.Context, mountPath string, mounter mount.Interface, extensiveMountPointCheck bool, unmountTimeout time.Duration) error {
	return podmount.TearDown(ctx, mounter, mountPath, mount.UnmountOptions{ForceAfter: unmountTimeout})
}
