package fakemount

import "strings"

// fakeNames counts, for every path, the names that the fake keeps at and below
// it. Most moved directories hold none, and then not every mount must be looked
// at.
type fakeNames map[string]int

// add counts a clean, absolute name; with a negative number it is forgotten. An
// empty name is none.
func (n fakeNames) add(name string, times int) {
	for p := name; p != ""; p = p[:strings.LastIndexByte(p, '/')] {
		n[p] += times
		if n[p] == 0 {
			delete(n, p)
		}
	}
}

// rename sets a name that is kept, and counts it.
func (ns *namespace) rename(kept *string, name string) {
	ns.names.add(*kept, -1)
	*kept = name
	ns.names.add(name, 1)
}

// serve sets what mounts of source show.
func (ns *namespace) serve(source, dir string) {
	ns.names.add(ns.sources[source], -1)
	ns.sources[source] = dir
	ns.names.add(dir, 1)
}
