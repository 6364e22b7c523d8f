package local

import (
	"path"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume/layout"
)

// binding is what the mount table tells of a bound directory.
type binding struct {
	// path is the directory of the node; empty where it is not known.
	path string
	// source is the source of the mount that shows the path.
	source   string
	readOnly bool
	// certain: the path is the only one, and the volume has no mount options
	// of its own.
	certain bool
}

// findBinding finds out which directory of the node is bound at dir: one that
// another mount of the same file system shows. It is not certain where there
// is none, or several.
func findBinding(m mount.Interface, dir string) (binding, error) {
	mounts := table.Of(m)
	bind, mounted, err := mounts.At(dir)
	if err != nil || !mounted {
		return binding{}, err
	}
	all, err := mounts.All()
	if err != nil {
		return binding{}, err
	}
	found := binding{readOnly: bind.ReadOnly()}
	var paths []string
	for _, e := range all {
		p, ok := pathIn(e, bind)
		if ok && !isPodVolume(p) && visible(e, p, all) && !slices.Contains(paths, p) {
			paths = append(paths, p)
			found.source = e.Source
			found.certain = len(paths) == 1 && sameOptions(e, bind)
		}
	}
	if len(paths) > 0 {
		found.path = paths[0]
	}
	return found, nil
}

// sameOptions reports whether a bind has the options of the mount that it was
// made from, read-only left aside: others were asked for.
func sameOptions(origin, bind mount.Entry) bool {
	return slices.Equal(withoutAccess(origin.Options), withoutAccess(bind.Options))
}

func withoutAccess(options []string) (kept []string) {
	for _, o := range options {
		if o != "ro" && o != "rw" {
			kept = append(kept, o)
		}
	}
	slices.Sort(kept)
	return kept
}

// pathIn returns where mount e shows the directory that bind shows.
func pathIn(e, bind mount.Entry) (string, bool) {
	if e.Device != bind.Device || e.ID == bind.ID {
		return "", false
	}
	rest, ok := pathin.Cut(e.Root, bind.Root)
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
		if pathin.In(other.Target, p) {
			return false
		}
	}
	return false
}

// isPodVolume leaves out the binds of other pods.
func isPodVolume(p string) bool {
	return strings.Contains(p, "/volumes/"+layout.EscapeQualifiedName(PluginName)+"/")
}
