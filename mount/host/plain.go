package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
)

// Mount implements [mount.Interface]; it waits without limit.
func (m *Mounter) Mount(source, target, fstype string, options []string) error {
	return m.MountSensitive(source, target, fstype, options, nil)
}

// MountSensitive implements [mount.Interface]; it waits without limit.
func (m *Mounter) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	return m.MountContext(context.Background(), mount.Request{Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive})
}

// MountSensitiveWithoutSystemd implements [mount.Interface]; it waits without
// limit and starts no systemd scope.
func (m *Mounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return m.MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype, options, sensitive, nil)
}

// MountSensitiveWithoutSystemdWithMountFlags implements [mount.Interface]; flags
// are for mount(8), which then makes the mount, whatever its type, without a
// systemd scope.
func (m *Mounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, flags []string) error {
	return m.mount(context.Background(), mount.Request{Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive}, runner{flags: flags, noScope: true})
}

// Unmount implements [mount.Interface]: the normal rung, without limit of time.
func (m *Mounter) Unmount(target string) error {
	_, err := m.UnmountContext(context.Background(), target, mount.UnmountOptions{})
	return err
}

// UnmountWithForce implements mount-utils' MounterForceUnmounter: the normal rung, and
// after timeout the forced one, as with [mount.UnmountOptions].ForceAfter. There is no further
// limit of time. A timeout of 0 or less counts as a millisecond.
func (m *Mounter) UnmountWithForce(target string, timeout time.Duration) error {
	_, err := m.UnmountContext(context.Background(), target, mount.UnmountOptions{ForceAfter: max(timeout, time.Millisecond)})
	return err
}

// CanSafelySkipMountPointCheck implements [mount.Interface]. It is false, because unmounting a
// path without a mount is an error here ([mount.ErrNotMounted]).
func (*Mounter) CanSafelySkipMountPointCheck() bool { return false }

var (
	_ mount.ContextMounter           = (*Mounter)(nil)
	_ k8smount.MounterForceUnmounter = (*Mounter)(nil)
)

// Table returns the mount table of this process's mount namespace, which the
// mounter keeps for its own questions.
func (m *Mounter) Table() mount.Table { return m.table }

// List implements [mount.Interface] from the mount table. Options are as in
// /proc/mounts: the mount's and its file system's.
//
// If the kernel gave no signal of a change since the last List, it is a copy from
// memory. After a signal the options of all mounts are read anew, and the paths of those
// that were attached, detached or moved. There is no signal of these changes, which
// [mount.Table].All reads as well:
//
//   - A directory above a mount point is renamed.
//   - The options of a file system are changed from another mount namespace, or
//     by the kernel itself (read-only after an error).
func (m *Mounter) List() ([]mount.MountPoint, error) {
	return m.index.List()
}

// IsMountPoint implements [mount.Interface] from the mount table. It follows a link
// only if the path itself is no mount point. The error matches fs.ErrNotExist if
// file does not exist.
func (m *Mounter) IsMountPoint(file string) (bool, error) {
	mounted, info, err := m.look(file)
	if err != nil || mounted || info.Mode()&os.ModeSymlink == 0 {
		return mounted, err
	}
	resolved, err := filepath.EvalSymlinks(file)
	if err != nil {
		return false, err
	}
	mounted, _, err = m.look(resolved)
	return mounted, err
}

// IsLikelyNotMountPoint implements [mount.Interface]: the contrary of IsMountPoint,
// links followed and errors included. It is not a guess: bind mounts are seen as
// well.
func (m *Mounter) IsLikelyNotMountPoint(file string) (bool, error) {
	mounted, err := m.IsMountPoint(file)
	return !mounted, err
}

// look asks the table first, so that no mounted file system is touched.
func (m *Mounter) look(file string) (mounted bool, info os.FileInfo, err error) {
	abs, err := filepath.Abs(file)
	if err != nil {
		return false, nil, err
	}
	_, mounted, err = m.table.At(abs)
	if err != nil || mounted {
		return mounted, nil, err
	}
	info, err = os.Lstat(abs)
	return false, info, err
}

// GetMountRefs implements [mount.Interface] from the mount table. It returns the other
// places at which the directory at pathname is mounted. A path that does not
// exist, or is a broken link, has none.
func (m *Mounter) GetMountRefs(pathname string) ([]string, error) {
	clean := filepath.Clean(pathname)
	mounted, err := m.index.IsMounted(clean)
	if err != nil {
		return nil, err
	}
	if mounted {
		return m.index.Refs(clean)
	}
	resolved, err := filepath.EvalSymlinks(clean)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return m.index.Refs(resolved)
}
