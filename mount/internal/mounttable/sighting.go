package mounttable

import "github.com/podvol/podvol/mount"

// Sighting is a mount as it was seen in a table, with marks that tell it from
// later ones. The kernel hands the lowest free id out again: a mount made after
// another one ended has, as a rule, its ID.
type Sighting struct {
	mount.Entry
	// unique is the id that the kernel never hands out again (since Linux 6.8),
	// or 0 where the table does not know it.
	Unique uint64
}

// IsSame reports whether two sightings are of one mount. Where the kernel has
// no unique ids, two mounts that are alike in all that cannot change are taken
// for one.
func (s Sighting) IsSame(o Sighting) bool {
	if s.Unique != 0 && o.Unique != 0 {
		return s.Unique == o.Unique
	}
	return s.ID == o.ID && s.ParentID == o.ParentID && s.Device == o.Device &&
		s.Root == o.Root && s.Target == o.Target && s.Source == o.Source && s.FSType == o.FSType
}

// exactTable is implemented by tables that tell mounts apart which have the same
// id one after the other, and find the mount at a path, canonical as in the
// table, without a look at any other.
type exactTable interface {
	AtExactly(path string) (Sighting, bool, error)
	Sightings() ([]Sighting, error)
}

// SightingAt is what t has mounted at path, which is canonical.
func SightingAt(t mount.Table, path string) (Sighting, bool, error) {
	if exact, ok := t.(exactTable); ok {
		return exact.AtExactly(path)
	}
	e, ok, err := t.At(path)
	return Sighting{Entry: e}, ok, err
}

// SightingWithoutLinks is what t has mounted at just a path, if t can tell that
// without following links.
func SightingWithoutLinks(t mount.Table, path string) (Sighting, bool) {
	exact, ok := t.(exactTable)
	if !ok {
		return Sighting{}, false
	}
	s, ok, err := exact.AtExactly(path)
	return s, ok && err == nil
}

// SightingsOf are all mounts of t.
func SightingsOf(t mount.Table) ([]Sighting, error) {
	if exact, ok := t.(exactTable); ok {
		return exact.Sightings()
	}
	entries, err := t.All()
	return sightingsFrom(entries), err
}

func sightingsFrom(entries []mount.Entry) []Sighting {
	seen := make([]Sighting, len(entries))
	for i, e := range entries {
		seen[i].Entry = e
	}
	return seen
}

// unique is the node's unique id, or 0.
func (x *Table) unique(n *node) uint64 {
	if x.byMountinfo {
		return 0
	}
	return n.id
}

// AtExactly implements exactTable.
func (x *Table) AtExactly(target string) (s Sighting, ok bool, err error) {
	err = x.answer(func() (old bool, err error) {
		s = Sighting{}
		s.Entry, ok, old, err = x.find(target)
		if ok && !old {
			s.Unique = x.unique(x.way[len(x.way)-1])
		}
		return old, err
	})
	if err != nil {
		return Uncached{}.AtExactly(target)
	}
	return s, ok, nil
}

// Sightings implements exactTable.
func (x *Table) Sightings() (seen []Sighting, err error) {
	err = x.answer(func() (old bool, err error) {
		if !x.fresh {
			return true, nil
		}
		nodes := x.graph.all()
		seen = sightingsFrom(clones(nodes))
		for i, n := range nodes {
			seen[i].Unique = x.unique(n)
		}
		return false, nil
	})
	if err != nil {
		return Uncached{}.Sightings()
	}
	return seen, nil
}

// AtExactly implements exactTable.
func (t Uncached) AtExactly(target string) (Sighting, bool, error) {
	entries, err := t.All()
	if err != nil {
		return Sighting{}, false, err
	}
	e, ok := mountedAt(entries, target)
	return Sighting{Entry: e}, ok, nil
}

// Sightings implements exactTable.
func (t Uncached) Sightings() ([]Sighting, error) {
	entries, err := t.All()
	return sightingsFrom(entries), err
}
