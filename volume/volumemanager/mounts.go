package volumemanager

import (
	"cmp"
	"path/filepath"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/below"
	"github.com/podvol/podvol/volume"
)

// mounts is one look at the mount table: what is mounted below the root
// directory. One look serves any number of volumes.
type mounts struct {
	root    string            // as paths below it begin
	real    string            // as the mount table has it, links resolved
	targets map[string]int    // how many mounts are there
	labels  map[string]string // the SELinux labels that file systems are mounted with, by target
	mounter mount.Interface   // whose file systems can be asked for; nil: the kernel's
}

func readMounts(rootDir string, mounter mount.Interface) (mounts, error) {
	table, err := mount.TableOf(mounter)
	if err != nil {
		return mounts{}, err
	}
	m, err := newMounts(rootDir, table)
	m.mounter = mounter
	return m, err
}

func newMounts(rootDir string, table mount.Table) (mounts, error) {
	entries, err := table.All()
	if err != nil {
		return mounts{}, err
	}
	m := mounts{root: rootDir, real: rootDir, targets: make(map[string]int, len(entries)), labels: make(map[string]string)}
	if real, err := filepath.EvalSymlinks(rootDir); err == nil {
		m.real = real
	}
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
	rest, ok := below.Cut(m.root, path)
	return ok && (m.targets[path] > 0 || m.targets[filepath.Join(m.real, rest)] > 0)
}

// label is the SELinux label of what is mounted at a path below the root; empty:
// none.
func (m mounts) label(path string) string {
	rest, _ := below.Cut(m.root, path)
	return cmp.Or(m.labels[path], m.labels[filepath.Join(m.real, rest)])
}

// shown returns a target below the root as paths begin, links not resolved.
func (m mounts) shown(target string) (string, bool) {
	for _, root := range []string{m.root, m.real} {
		if rest, ok := below.Cut(root, target); ok {
			return filepath.Join(m.root, rest), true
		}
	}
	return "", false
}
