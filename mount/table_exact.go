package mount

// sighting is a mount as it was seen in a table, with what tells it from those
// that come after it: the kernel hands the lowest free id out again, so that a
// mount made after another one ended has, as a rule, its ID.
type sighting struct {
	Entry
	// unique is the id that the kernel never hands out again (since Linux 6.8),
	// or 0 where the table does not know it.
	unique uint64
}

// isSame reports whether two sightings are of one mount. Where the kernel has
// no unique ids, two mounts that are alike in all that cannot change are taken
// for one.
func (s sighting) isSame(o sighting) bool {
	if s.unique != 0 && o.unique != 0 {
		return s.unique == o.unique
	}
	return s.ID == o.ID && s.ParentID == o.ParentID && s.Device == o.Device &&
		s.Root == o.Root && s.Target == o.Target && s.Source == o.Source && s.FSType == o.FSType
}

// exactTable is implemented by tables that tell mounts apart which have the same
// id one after the other, and find what is mounted at just a path, canonical as
// in the table, without a look at anything else.
type exactTable interface {
	atExactly(path string) (sighting, bool, error)
	sightings() ([]sighting, error)
}

// sightingAt is what t has mounted at path, which is canonical.
func sightingAt(t Table, path string) (sighting, bool, error) {
	if exact, ok := t.(exactTable); ok {
		return exact.atExactly(path)
	}
	e, ok, err := t.At(path)
	return sighting{Entry: e}, ok, err
}

// sightingsOf are all mounts of t.
func sightingsOf(t Table) ([]sighting, error) {
	if exact, ok := t.(exactTable); ok {
		return exact.sightings()
	}
	entries, err := t.All()
	return sightingsFrom(entries), err
}

func sightingsFrom(entries []Entry) []sighting {
	seen := make([]sighting, len(entries))
	for i, e := range entries {
		seen[i].Entry = e
	}
	return seen
}

// unique is the node's unique id, or 0.
func (x *index) unique(n *node) uint64 {
	if x.byMountinfo {
		return 0
	}
	return n.id
}

// atExactly implements exactTable.
func (x *index) atExactly(target string) (s sighting, ok bool, err error) {
	err = x.answer(func() (old bool, err error) {
		s = sighting{}
		s.Entry, ok, old, err = x.find(target)
		if ok && !old {
			s.unique = x.unique(x.way[len(x.way)-1])
		}
		return old, err
	})
	if err != nil {
		return kernelTable{}.atExactly(target)
	}
	return s, ok, nil
}

// sightings implements exactTable.
func (x *index) sightings() (seen []sighting, err error) {
	err = x.answer(func() (old bool, err error) {
		if !x.fresh {
			return true, nil
		}
		nodes := x.graph.all()
		seen = sightingsFrom(clones(nodes))
		for i, n := range nodes {
			seen[i].unique = x.unique(n)
		}
		return false, nil
	})
	if err != nil {
		return kernelTable{}.sightings()
	}
	return seen, nil
}

// atExactly implements exactTable.
func (t kernelTable) atExactly(target string) (sighting, bool, error) {
	entries, err := t.All()
	if err != nil {
		return sighting{}, false, err
	}
	e, ok := mountedAt(entries, target)
	return sighting{Entry: e}, ok, nil
}

// sightings implements exactTable.
func (t kernelTable) sightings() ([]sighting, error) {
	entries, err := t.All()
	return sightingsFrom(entries), err
}
