package ladder

import (
	"slices"
	"sync"

	"github.com/podvol/podvol/mount"
)

// Headway is how far a ladder has got with a mount.
type Headway int

const (
	// underWay: half of the time before force is over.
	underWay Headway = iota
	// MayBeForced: all of it is.
	MayBeForced
	headways
	// beyondAll is further than any ladder gets.
	beyondAll = headways
)

// Forcing has the mounts that ladders have got somewhere with. Of several mounts
// of one file system, which all are to go, none spares the others.
type Forcing struct {
	mu     sync.Mutex
	mounts map[mountName]*Ladders
}

// Ladders counts those that are at a mount.
type Ladders [headways]int

// Reached reports whether one has got as far.
func (l *Ladders) Reached(h Headway) bool {
	return l != nil && slices.ContainsFunc(l[h:], func(n int) bool { return n > 0 })
}

// mountName is a mount's while a ladder is at it.
type mountName struct {
	id     int
	target string
}

func NameOf(e mount.Entry) mountName { return mountName{e.ID, e.Target} }

func (f *Forcing) Add(name mountName, h Headway, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mounts == nil {
		f.mounts = map[mountName]*Ladders{}
	}
	if f.mounts[name] == nil {
		f.mounts[name] = new(Ladders)
	}
	if f.mounts[name][h] += n; *f.mounts[name] == (Ladders{}) {
		delete(f.mounts, name)
	}
}

// Len returns how many mounts ladders are at.
func (f *Forcing) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.mounts)
}

func (f *Forcing) Reached(name mountName, h Headway) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mounts[name].Reached(h)
}
