package fakemount

import (
	"context"
	"errors"
	"io/fs"
	"path"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// Mount implements [mount.Interface] by MountContext without a deadline.
func (f *Mounter) Mount(source, target, fstype string, options []string) error {
	return f.MountSensitive(source, target, fstype, options, nil)
}

// MountSensitive implements [mount.Interface] by MountContext without a deadline.
func (f *Mounter) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	return f.MountContext(context.Background(), mount.Request{
		Source: source, Target: target, FSType: fstype, Options: options, Sensitive: sensitive,
	})
}

// MountSensitiveWithoutSystemd is MountSensitive.
func (f *Mounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return f.MountSensitive(source, target, fstype, options, sensitive)
}

// MountSensitiveWithoutSystemdWithMountFlags is MountSensitive; the flags are for
// a command that the fake does not run.
func (f *Mounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, _ []string) error {
	return f.MountSensitive(source, target, fstype, options, sensitive)
}

// Unmount implements [mount.Interface]: the normal rung, without a deadline.
func (f *Mounter) Unmount(target string) error {
	_, err := f.UnmountContext(context.Background(), target, mount.UnmountOptions{})
	return err
}

// List returns all mounts, oldest first, "/" included.
func (f *Mounter) List() ([]mount.MountPoint, error) {
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	points := make([]mount.MountPoint, len(f.ns.mounts))
	for i, m := range f.ns.mounts {
		points[i] = mount.MountPoint{Device: m.super.source, Path: m.target, Type: m.super.fstype, Opts: mounttable.AllOptions(m.entry())}
	}
	return points, nil
}

// IsMountPoint reports whether path, links followed, is a mount point. The error
// matches [fs.ErrNotExist] if path does not exist.
func (f *Mounter) IsMountPoint(path string) (bool, error) {
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	at, err := f.ns.walk(path, true)
	if err != nil {
		return false, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return at.isMountRoot(), nil
}

// IsLikelyNotMountPoint is the contrary of IsMountPoint, errors included. Unlike
// its name it is exact.
func (f *Mounter) IsLikelyNotMountPoint(path string) (bool, error) {
	is, err := f.IsMountPoint(path)
	return !is, err
}

// CanSafelySkipMountPointCheck is false: unmounting a path without a mount fails.
func (f *Mounter) CanSafelySkipMountPointCheck() bool { return false }

// GetMountRefs returns the targets of all mounts that show the same directory as
// path, without the mounts at path itself. path may be a mount point or a
// directory that is bound elsewhere. A missing path has no references.
func (f *Mounter) GetMountRefs(name string) ([]string, error) {
	f.ns.mu.Lock()
	defer f.ns.mu.Unlock()
	at, err := f.ns.walk(name, true)
	if isMissing(err) {
		return []string{}, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	clean := path.Clean(name)
	refs := []string{}
	for _, m := range f.ns.mounts {
		if m != at.mount && m.target != clean && m.super == at.mount.super && m.path == at.path {
			refs = append(refs, m.target)
		}
	}
	return refs, nil
}

func isMissing(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) }
