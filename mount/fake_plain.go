package mount

import (
	"context"
	"errors"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"
)

// Mount implements [Interface] by MountContext without a deadline.
func (f *FakeMounter) Mount(source, target, fstype string, options []string) error {
	return f.MountSensitive(source, target, fstype, options, nil)
}

// MountSensitive implements [Interface] by MountContext without a deadline.
func (f *FakeMounter) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	return f.MountContext(context.Background(), Request{
		Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive,
	})
}

// MountSensitiveWithoutSystemd is MountSensitive.
func (f *FakeMounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return f.MountSensitive(source, target, fstype, options, sensitive)
}

// MountSensitiveWithoutSystemdWithMountFlags is MountSensitive; the flags are
// those of a command that the fake does not run.
func (f *FakeMounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, _ []string) error {
	return f.MountSensitive(source, target, fstype, options, sensitive)
}

// Unmount implements [Interface]: the normal rung, without a deadline.
func (f *FakeMounter) Unmount(target string) error {
	_, err := f.UnmountContext(context.Background(), target, UnmountOptions{})
	return err
}

// List returns all mounts, oldest first, "/" included.
func (f *FakeMounter) List() ([]MountPoint, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	points := make([]MountPoint, len(f.mounts))
	for i, m := range f.mounts {
		points[i] = MountPoint{Device: m.super.source, Path: m.target, Type: m.super.fstype, Opts: m.entry().allOptions()}
	}
	return points, nil
}

// IsMountPoint reports whether path, links followed, is a mount point. The error
// matches [fs.ErrNotExist] if path does not exist.
func (f *FakeMounter) IsMountPoint(path string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.walk(path, true)
	if err != nil {
		return false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return at.isMountRoot(), nil
}

// IsLikelyNotMountPoint is the contrary of IsMountPoint, errors included. Unlike
// its name it is exact.
func (f *FakeMounter) IsLikelyNotMountPoint(path string) (bool, error) {
	is, err := f.IsMountPoint(path)
	return !is, err
}

// CanSafelySkipMountPointCheck is false: unmounting a path without a mount fails.
func (f *FakeMounter) CanSafelySkipMountPointCheck() bool { return false }

// GetMountRefs returns the targets of all mounts that show the same directory as
// path, without the mounts at path itself. path may be a mount point or a
// directory that is bound elsewhere. A missing path has no references.
func (f *FakeMounter) GetMountRefs(name string) ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.walk(name, true)
	if isMissing(err) {
		return []string{}, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	clean := path.Clean(name)
	refs := []string{}
	for _, m := range f.mounts {
		if m != at.mount && m.target != clean && m.super == at.mount.super && m.path == at.path {
			refs = append(refs, m.target)
		}
	}
	return refs, nil
}

func isMissing(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }
