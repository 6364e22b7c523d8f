package mounttable

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/eintr"
)

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

// BDIDir has a directory for the write-back of each file system that has one of its own,
// named by device number (Linux, Documentation/ABI/testing/sysfs-class-bdi).
const BDIDir = "/sys/class/bdi"

// DeviceNumber is how sysfs calls a device.
func DeviceNumber(device uint64) string {
	return strconv.FormatUint(uint64(unix.Major(device)), 10) + ":" + strconv.FormatUint(uint64(unix.Minor(device)), 10)
}

// InodeOf returns the number of the inode of a path.
func InodeOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Stat(path, &st) }); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// OnBlockDevice reports whether the file system's data is on a block device.
func OnBlockDevice(e mount.Entry) bool {
	if unix.Major(e.Device) != 0 || strings.HasPrefix(e.Source, "/dev/") {
		return true
	}
	return slices.Contains([]string{"btrfs", "bcachefs", "zfs", "ubifs"}, e.FSType)
}

// HasLeftSysfs reports that no file system with a directory of its own below
// /sys/class/bdi has this device number now.
func HasLeftSysfs(device uint64) bool {
	_, err := InodeOf(filepath.Join(BDIDir, DeviceNumber(device)))
	if !errors.Is(err, unix.ENOENT) {
		return false
	}
	_, err = InodeOf(BDIDir) // it may be sysfs that is gone
	return err == nil
}
