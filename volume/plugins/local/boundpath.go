package local

import (
	"path"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/below"
	"github.com/podvol/podvol/volume"
)

// boundPath finds out which directory of the node is bound at dir: one that
// another mount of the same file system shows. certain is false where there is
// none, or several.
func boundPath(m mount.Interface, dir string) (found string, certain bool, err error) {
	table, err := mount.TableOf(m)
	if err != nil {
		return "", false, err
	}
	bind, mounted, err := table.At(dir)
	if err != nil || !mounted {
		return "", false, err
	}
	all, err := table.All()
	if err != nil {
		return "", false, err
	}
	var paths []string
	for _, e := range all {
		p, ok := pathIn(e, bind)
		if ok && !isPodVolume(p) && visible(e, p, all) && !slices.Contains(paths, p) {
			paths = append(paths, p)
		}
	}
	if len(paths) == 0 {
		return "", false, nil
	}
	return paths[0], len(paths) == 1, nil
}

// pathIn returns where mount e shows the directory that bind shows.
func pathIn(e, bind mount.Entry) (string, bool) {
	if e.Device != bind.Device || e.ID == bind.ID {
		return "", false
	}
	rest, ok := below.Cut(e.Root, bind.Root)
	if !ok {
		return "", false
	}
	return path.Join(e.Target, rest), true
}

// visible reports whether p is reached through mount e: no newer mount is at p
// or at a directory above it.
func visible(e mount.Entry, p string, all []mount.Entry) bool {
	for _, other := range slices.Backward(all) { // newest first
		if other.ID == e.ID {
			return true
		}
		if _, ok := below.Cut(other.Target, p); ok {
			return false
		}
	}
	return false
}

// isPodVolume leaves out the binds of other pods.
func isPodVolume(p string) bool {
	return strings.Contains(p, "/volumes/"+volume.EscapeQualifiedName(PluginName)+"/")
}
