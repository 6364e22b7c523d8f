package volumemanager

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume/mountrecord"
)

// isMountPoint reports whether something is mounted just at a path, by the mount
// table. Nothing is at the empty path.
func (m *Manager) isMountPoint(path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	mounts := table.Of(m.host.Mounter)
	_, mounted, err := mounts.At(path)
	return mounted, err
}

// mountedBelow reports whether a volume's path is a mount point of its own. A
// path outside the root, a hostPath's, is somebody else's matter.
func (m *Manager) mountedBelow(path string) (bool, error) {
	if !pathin.Strictly(podsDir(m.host.RootDir), path) {
		return false, nil
	}
	return m.isMountPoint(path)
}

// mountsIn lists the mounts below a directory of the manager's, deepest first.
func (m *Manager) mountsIn(dir string) ([]mount.Entry, error) {
	mounts := table.Of(m.host.Mounter)
	real, err := filepath.EvalSymlinks(dir) // a root directory may lie behind links
	if err != nil {
		return nil, err
	}
	bound, err := mount.Below(mounts, real)
	if err != nil {
		return nil, err
	}
	slices.Reverse(bound)
	slices.SortStableFunc(bound, func(a, b mount.Entry) int {
		return cmp.Compare(strings.Count(b.Target, "/"), strings.Count(a.Target, "/"))
	})
	return bound, nil
}

// openVolume opens the root of a volume, but no bare mount point.
func (m *Manager) openVolume(r *mountrecord.Record) (*os.File, error) {
	if r.Confirmed == nil || !r.Confirmed.MountPoint || !pathin.Strictly(podsDir(m.host.RootDir), r.Path) {
		return openPlace(r.Path)
	}
	return m.openMounted(r.Path)
}

// openMounted opens what is mounted at a path: only after that does the mount
// table say that it was no bare mount point.
func (m *Manager) openMounted(path string) (*os.File, error) {
	root, err := openPlace(path)
	if err != nil {
		return nil, err
	}
	mounted, err := m.isMountPoint(path)
	if err == nil && !mounted {
		err = ErrNotMountedAnymore
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// openPlace opens a path of the manager's own, or one that a manifest may name
// freely, without opening what is there.
func openPlace(path string) (*os.File, error) {
	fd, err := eintr.Get(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
