package rootdir

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/selinux"
)

// Mounts has the mounts below the root directory from one look at the mount
// table, which serves any number of volumes.
type Mounts struct {
	places  []place           // from the deepest
	Targets map[string]int    // how many mounts are there
	labels  map[string]string // the SELinux labels that file systems are mounted with, by target
	Mounter mount.Interface   // whose file systems can be asked for; nil: the kernel's
}

// place is a directory by which paths begin, and what the mount table has in its
// stead: a root directory, or one of those in it, may be a link.
type place struct{ given, real string }

func placesOf(rootDir string) (places []place, err error) {
	for _, dir := range append(mountDirs(rootDir), rootDir) {
		real, err := filepath.EvalSymlinks(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // nothing is mounted there, or only by the root's own place
		}
		if err != nil {
			return nil, err
		}
		places = append(places, place{dir, real})
	}
	return append(places, place{rootDir, rootDir}), nil
}

// ReadMounts reads the mount table that the mounter sees.
func ReadMounts(rootDir string, mounter mount.Interface) (Mounts, error) {
	m, err := NewMounts(rootDir, table.Of(mounter))
	m.Mounter = mounter
	return m, err
}

// IsMountPoint reports whether something is mounted just at a path, by the mount table that
// the mounter sees. Nothing is at the empty path.
func IsMountPoint(mounter mount.Interface, path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	_, mounted, err := table.Of(mounter).At(path)
	return mounted, err
}

// IsOwnMountPoint reports whether a volume's path is a mount point of its own. A
// path outside the pods' directories, a hostPath's, is not podvol's.
func IsOwnMountPoint(host *volume.Host, path string) (bool, error) {
	if !pathin.Strictly(PodsDir(host.RootDir), path) {
		return false, nil
	}
	return IsMountPoint(host.Mounter, path)
}

// NewMounts picks the mounts below a root directory out of a mount table.
func NewMounts(rootDir string, table mount.Table) (Mounts, error) {
	entries, err := table.All()
	if err != nil {
		return Mounts{}, err
	}
	places, err := placesOf(rootDir)
	if err != nil {
		return Mounts{}, err
	}
	m := Mounts{places: places, Targets: make(map[string]int, len(entries)), labels: make(map[string]string)}
	for _, e := range entries {
		m.Targets[e.Target]++
		if label := selinux.MountOption(e.SuperOptions); label != "" {
			m.labels[e.Target] = label
		}
	}
	return m, nil
}

// Has reports whether something is mounted at a path below the root.
func (m Mounts) Has(path string) bool {
	real, ok := m.real(path)
	return ok && (m.Targets[path] > 0 || m.Targets[real] > 0)
}

// Label is the SELinux label of the mount at a path below the root; empty: none.
func (m Mounts) Label(path string) string {
	real, _ := m.real(path)
	return cmp.Or(m.labels[path], m.labels[real])
}

// real returns a path below the root as the mount table has it.
func (m Mounts) real(path string) (string, bool) {
	for _, p := range m.places {
		if rest, ok := pathin.Cut(p.given, path); ok {
			return filepath.Join(p.real, rest), true
		}
	}
	return "", false
}

// Shown returns a target below the root as paths begin, links not resolved.
func (m Mounts) Shown(target string) (string, bool) {
	for _, p := range m.places {
		if rest, ok := pathin.Cut(p.real, target); ok {
			return filepath.Join(p.given, rest), true
		}
	}
	return "", false
}
