package mount

import "sync"

// forcing has the mounts that ladders may force by now. Of several mounts of one
// file system, which all are to go, none spares the others.
type forcing struct {
	mu     sync.Mutex
	mounts map[mountName]int // ladders
}

// mountName is a mount's while a ladder is at it.
type mountName struct {
	id     int
	target string
}

func nameOf(e Entry) mountName { return mountName{e.ID, e.Target} }

func (f *forcing) add(name mountName, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mounts == nil {
		f.mounts = map[mountName]int{}
	}
	if f.mounts[name] += n; f.mounts[name] == 0 {
		delete(f.mounts, name)
	}
}

func (f *forcing) has(name mountName) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mounts[name] > 0
}

// mayForce implements [unmounter].
func (u *hostUnmount) mayForce() (done func()) {
	found := u.found.Load()
	if found == nil {
		return func() {}
	}
	name := nameOf(found.Entry)
	u.m.force.add(name, 1)
	return func() { u.m.force.add(name, -1) }
}

// isShared implements [unmounter], by this mount namespace. The table has a
// mount that hangs in its end no more.
func (u *hostUnmount) isShared() bool {
	found := u.found.Load()
	if found == nil {
		return true
	}
	mounts, err := u.m.table.ByDevice(found.Device)
	if err != nil {
		return true
	}
	for _, e := range mounts {
		if name := nameOf(e); name != nameOf(found.Entry) && !u.m.force.has(name) {
			return true
		}
	}
	return false
}

// mayForce implements [unmounter].
func (u *fakeUnmount) mayForce() (done func()) {
	v := u.victim
	if v == nil {
		return func() {}
	}
	add := func(n int) {
		u.fake.mu.Lock()
		defer u.fake.mu.Unlock()
		v.forcing += n
	}
	add(1)
	return func() { add(-1) }
}

// isShared implements [unmounter].
func (u *fakeUnmount) isShared() bool {
	u.fake.mu.Lock()
	defer u.fake.mu.Unlock()
	if u.victim == nil {
		return true
	}
	for _, m := range u.fake.mounts {
		if m != u.victim && m.super == u.victim.super && m.forcing == 0 {
			return true
		}
	}
	return false
}
