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
	mounts map[Name]*Ladders
}

// Ladders counts those that are at a mount.
type Ladders [headways]int

// Reached reports whether one has got as far.
func (l *Ladders) Reached(h Headway) bool {
	return l != nil && slices.ContainsFunc(l[h:], func(n int) bool { return n > 0 })
}

// Name is a mount's while a ladder is at it.
type Name struct {
	id     int
	target string
}

// NameOf names a mount.
func NameOf(e mount.Entry) Name { return Name{e.ID, e.Target} }

// Add counts n unmounts that have got to h with a mount; n is negative for those that end.
func (f *Forcing) Add(name Name, h Headway, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mounts == nil {
		f.mounts = map[Name]*Ladders{}
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

// Reached reports whether an unmount of the mount has got to h.
func (f *Forcing) Reached(name Name, h Headway) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mounts[name].Reached(h)
}
