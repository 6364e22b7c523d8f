package volumemanager

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume"
)

// mounts is one look at the mount table: what is mounted below the root
// directory. One look serves any number of volumes.
type mounts struct {
	places  []place           // from the deepest
	targets map[string]int    // how many mounts are there
	labels  map[string]string // the SELinux labels that file systems are mounted with, by target
	mounter mount.Interface   // whose file systems can be asked for; nil: the kernel's
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

func readMounts(rootDir string, mounter mount.Interface) (mounts, error) {
	mounts := table.Of(mounter)
	m, err := newMounts(rootDir, mounts)
	m.mounter = mounter
	return m, err
}

func newMounts(rootDir string, table mount.Table) (mounts, error) {
	entries, err := table.All()
	if err != nil {
		return mounts{}, err
	}
	places, err := placesOf(rootDir)
	if err != nil {
		return mounts{}, err
	}
	m := mounts{places: places, targets: make(map[string]int, len(entries)), labels: make(map[string]string)}
	for _, e := range entries {
		m.targets[e.Target]++
		if label := volume.SELinuxMountOption(e.SuperOptions); label != "" {
			m.labels[e.Target] = label
		}
	}
	return m, nil
}

// has reports whether something is mounted at a path below the root.
func (m mounts) has(path string) bool {
	real, ok := m.real(path)
	return ok && (m.targets[path] > 0 || m.targets[real] > 0)
}

// label is the SELinux label of what is mounted at a path below the root; empty:
// none.
func (m mounts) label(path string) string {
	real, _ := m.real(path)
	return cmp.Or(m.labels[path], m.labels[real])
}

// real returns a path below the root as the mount table has it.
func (m mounts) real(path string) (string, bool) {
	for _, p := range m.places {
		if rest, ok := pathin.Cut(p.given, path); ok {
			return filepath.Join(p.real, rest), true
		}
	}
	return "", false
}

// shown returns a target below the root as paths begin, links not resolved.
func (m mounts) shown(target string) (string, bool) {
	for _, p := range m.places {
		if rest, ok := pathin.Cut(p.real, target); ok {
			return filepath.Join(p.given, rest), true
		}
	}
	return "", false
}
