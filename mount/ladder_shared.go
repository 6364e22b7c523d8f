package mount

import (
	"slices"
	"sync"
)

// headway is how far a ladder has got with a mount.
type headway int

const (
	// underWay: half of the time before force is over.
	underWay headway = iota
	// mayBeForced: all of it is.
	mayBeForced
	headways
	// beyondAll is further than any ladder gets.
	beyondAll = headways
)

// forcing has the mounts that ladders have got somewhere with. Of several mounts
// of one file system, which all are to go, none spares the others.
type forcing struct {
	mu     sync.Mutex
	mounts map[mountName]*ladders
}

// ladders counts those that are at a mount.
type ladders [headways]int

// reached reports whether one has got as far.
func (l *ladders) reached(h headway) bool {
	return l != nil && slices.ContainsFunc(l[h:], func(n int) bool { return n > 0 })
}

// mountName is a mount's while a ladder is at it.
type mountName struct {
	id     int
	target string
}

func nameOf(e Entry) mountName { return mountName{e.ID, e.Target} }

func (f *forcing) add(name mountName, h headway, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mounts == nil {
		f.mounts = map[mountName]*ladders{}
	}
	if f.mounts[name] == nil {
		f.mounts[name] = new(ladders)
	}
	if f.mounts[name][h] += n; *f.mounts[name] == (ladders{}) {
		delete(f.mounts, name)
	}
}

func (f *forcing) reached(name mountName, h headway) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mounts[name].reached(h)
}

// enter implements [unmounter].
func (u *hostUnmount) enter(h headway) (leave func()) {
	found := u.found.Load()
	if found == nil {
		return func() {}
	}
	name := nameOf(found.Entry)
	u.m.force.add(name, h, 1)
	return func() { u.m.force.add(name, h, -1) }
}

// isShared implements [unmounter], by this mount namespace. The table has a
// mount that hangs in its end no more.
func (u *hostUnmount) isShared(h headway) bool {
	found := u.found.Load()
	if found == nil {
		return true
	}
	mounts, err := u.m.table.ByDevice(found.Device)
	if err != nil {
		return true
	}
	for _, e := range mounts {
		if name := nameOf(e); name != nameOf(found.Entry) && !u.m.force.reached(name, h) {
			return true
		}
	}
	return false
}

// enter implements [unmounter].
func (u *fakeUnmount) enter(h headway) (leave func()) {
	v := u.victim
	if v == nil {
		return func() {}
	}
	add := func(n int) {
		u.fake.mu.Lock()
		defer u.fake.mu.Unlock()
		v.ladders[h] += n
	}
	add(1)
	return func() { add(-1) }
}

// isShared implements [unmounter].
func (u *fakeUnmount) isShared(h headway) bool {
	u.fake.mu.Lock()
	defer u.fake.mu.Unlock()
	if u.victim == nil {
		return true
	}
	for _, m := range u.fake.mounts {
		if m != u.victim && m.super == u.victim.super && !m.ladders.reached(h) {
			return true
		}
	}
	return false
}
