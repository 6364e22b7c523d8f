package mounttable

import (
	"fmt"
	"iter"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/statmount"
)

// The questions about a mount: everything when it is new, and later what may
// change. Device, source and type are of the file system's making.
const (
	lasting  = statmount.Type | statmount.Subtype | statmount.Source
	changing = statmount.SuperBasic | statmount.MountBasic | statmount.Propagation |
		statmount.Root | statmount.Target | statmount.Options
)

// sight is what the lists of an entry are made of, to tell cheaply that nothing
// has changed.
type sight struct {
	attributes uint64
	superFlags uint32
	options    string
	flow       statmount.Flow
}

// words keeps strings and lists of which a table has many of the same.
// Its zero value is ready for use.
type words struct {
	texts map[string]string
	lists map[listOf][]string
}

// listOf is what a list of options is made of: flags and text of a file system,
// or the attributes of a mount.
type listOf struct {
	ofMount bool
	flags   uint64
	text    string
}

func (w *words) text(b []byte) string {
	if s, ok := w.texts[string(b)]; ok {
		return s
	}
	if w.texts == nil {
		w.texts = make(map[string]string)
	}
	s := string(b)
	w.texts[s] = s
	return s
}

func (w *words) list(of listOf, words func() []string) []string {
	l, ok := w.lists[of]
	if !ok {
		if w.lists == nil {
			w.lists = make(map[listOf][]string)
		}
		l = words()
		w.lists[of] = l
	}
	return l
}

// newNode makes the node of a record that has all fields.
func newNode(r statmount.Record, w *words) *node {
	n := &node{id: r.ID(), parent: r.Parent(), age: r.ID()}
	fstype := r.Type()
	if subtype := r.Subtype(); len(subtype) > 0 {
		fstype = slices.Concat(fstype, []byte{'.'}, subtype)
	}
	n.entry = mount.Entry{
		ID: r.OldID(), ParentID: r.OldParent(), Device: r.Device(),
		Root: w.text(r.Root()), Target: string(r.Target()), Source: w.text(r.Source()), FSType: w.text(fstype),
	}
	n.seen.options = w.text(r.Options())
	n.seen.attributes, n.seen.superFlags, n.seen.flow = r.Attributes(), r.SuperFlags(), r.Flow()
	n.describe(w)
	return n
}

// isAt reports whether the record says of the mount what the graph goes by.
func (n *node) isAt(r statmount.Record) bool {
	return n.parent == r.Parent() && n.entry.ParentID == r.OldParent() && n.entry.Device == r.Device() &&
		n.entry.Target == string(r.Target()) && n.entry.Root == string(r.Root())
}

// update takes over what the graph does not go by, and reports whether any of
// it was new.
func (n *node) update(r statmount.Record, w *words) bool {
	options := n.seen.options
	if options != string(r.Options()) {
		options = string(r.Options())
	}
	now := sight{r.Attributes(), r.SuperFlags(), options, r.Flow()}
	if now == n.seen {
		return false
	}
	n.seen = now
	n.describe(w)
	return true
}

// describe makes the lists of the entry as mountinfo shows them.
func (n *node) describe(w *words) {
	n.entry.Options = w.list(listOf{true, n.seen.attributes, ""}, func() []string { return attributeWords(n.seen.attributes) })
	n.entry.SuperOptions = w.list(listOf{false, uint64(n.seen.superFlags), n.seen.options}, func() []string {
		return append(superFlagWords(n.seen.superFlags), splitShown(n.seen.options)...)
	})
	n.entry.Propagation = propagationWords(n.seen.flow)
}

// attributeWords are the words for MOUNT_ATTR_…, in the order of mountinfo.
func attributeWords(attributes uint64) []string {
	names := []string{"rw"}
	if attributes&unix.MOUNT_ATTR_RDONLY != 0 {
		names[0] = "ro"
	}
	atime := attributes & unix.MOUNT_ATTR__ATIME
	for _, name := range []struct {
		on   bool
		name string
	}{
		{attributes&unix.MOUNT_ATTR_NOSUID != 0, "nosuid"},
		{attributes&unix.MOUNT_ATTR_NODEV != 0, "nodev"},
		{attributes&unix.MOUNT_ATTR_NOEXEC != 0, "noexec"},
		{atime == unix.MOUNT_ATTR_NOATIME, "noatime"},
		{attributes&unix.MOUNT_ATTR_NODIRATIME != 0, "nodiratime"},
		{atime == unix.MOUNT_ATTR_RELATIME, "relatime"},
		{attributes&unix.MOUNT_ATTR_NOSYMFOLLOW != 0, "nosymfollow"},
		{attributes&unix.MOUNT_ATTR_IDMAP != 0, "idmapped"},
	} {
		if name.on {
			names = append(names, name.name)
		}
	}
	return names
}

// superFlagWords are the words for SB_…, which have the values of MS_….
func superFlagWords(flags uint32) []string {
	names := []string{"rw"}
	if flags&unix.MS_RDONLY != 0 {
		names[0] = "ro"
	}
	for _, name := range []struct {
		flag uint32
		name string
	}{{unix.MS_SYNCHRONOUS, "sync"}, {unix.MS_DIRSYNC, "dirsync"}, {unix.MS_LAZYTIME, "lazytime"}} {
		if flags&name.flag != 0 {
			names = append(names, name.name)
		}
	}
	return names
}

// propagationWords are the optional fields of mountinfo.
func propagationWords(f statmount.Flow) []string {
	var names []string
	if f.Kind&unix.MS_SHARED != 0 {
		names = append(names, fmt.Sprintf("shared:%d", f.Group))
	}
	if f.Kind&unix.MS_SLAVE != 0 {
		names = append(names, fmt.Sprintf("master:%d", f.Master))
		if f.From != 0 && f.From != f.Master {
			names = append(names, fmt.Sprintf("propagate_from:%d", f.From))
		}
	}
	if f.Kind&unix.MS_UNBINDABLE != 0 {
		names = append(names, "unbindable")
	}
	return names
}

// isShown reports whether mountinfo would have a line for the mount: it leaves
// out what the root directory of the process does not reach.
func isShown(r statmount.Record) bool { return len(r.Target()) > 0 }

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
