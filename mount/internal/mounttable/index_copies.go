package mounttable

import (
	"iter"
	"slices"

	"github.com/podvol/podvol/mount"
)

// cloneOf returns an entry that shares nothing with e.
func cloneOf(e mount.Entry) mount.Entry {
	e.Options = slices.Clone(e.Options)
	e.SuperOptions = slices.Clone(e.SuperOptions)
	e.Propagation = slices.Clone(e.Propagation)
	return e
}

func entries(nodes []*node) iter.Seq[mount.Entry] {
	return func(yield func(mount.Entry) bool) {
		for _, n := range nodes {
			if !yield(n.entry) {
				return
			}
		}
	}
}

// clones returns the entries of nodes. Their lists are parts of one array, each
// used by one entry and without room to append.
func clones(nodes []*node) []mount.Entry {
	if len(nodes) == 0 {
		return nil
	}
	size := 0
	for _, n := range nodes {
		size += len(n.entry.Options) + len(n.entry.SuperOptions) + len(n.entry.Propagation)
	}
	array := make([]string, 0, size)
	copied := make([]mount.Entry, len(nodes))
	for i, n := range nodes {
		copied[i] = n.entry
		for _, list := range []*[]string{&copied[i].Options, &copied[i].SuperOptions, &copied[i].Propagation} {
			array, *list = copyInto(array, *list)
		}
	}
	return copied
}

// copyInto appends list to array and returns both, the second as its own slice.
func copyInto(array, list []string) (grown, own []string) {
	if len(list) == 0 {
		return array, nil
	}
	start := len(array)
	array = append(array, list...)
	return array, array[start:len(array):len(array)]
}

func pointsOf(entries iter.Seq[mount.Entry]) []mount.MountPoint {
	points := []mount.MountPoint{}
	for e := range entries {
		points = append(points, mount.MountPoint{Device: e.Source, Path: e.Target, Type: e.FSType, Opts: AllOptions(e)})
	}
	return points
}

// clonePoints returns points that share nothing with these.
func clonePoints(points []mount.MountPoint) []mount.MountPoint {
	size := 0
	for _, p := range points {
		size += len(p.Opts)
	}
	array := make([]string, 0, size)
	copied := slices.Clone(points)
	for i := range copied {
		array, copied[i].Opts = copyInto(array, copied[i].Opts)
	}
	return copied
}

// AllOptions are the options of the mount and of its file system, once each.
func AllOptions(e mount.Entry) []string {
	all := []string{"rw"}
	if e.ReadOnly() {
		all[0] = "ro"
	}
	for _, o := range slices.Concat(e.Options, e.SuperOptions) {
		if o != "ro" && o != "rw" && !slices.Contains(all, o) {
			all = append(all, o)
		}
	}
	return all
}
