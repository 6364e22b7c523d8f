package mounttable

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/statmount"
)

// The questions about a mount: everything when it is new, and later what may
// change. Device, source and type are of the file system's making.
const (
	lasting  = statmount.Type | statmount.Subtype | statmount.Source
	changing = options | statmount.Root | statmount.Target
	options  = statmount.SuperBasic | statmount.MountBasic | statmount.Propagation | statmount.Options
)

// sight is what the lists of an entry are made of, to tell cheaply that nothing
// has changed.
type sight struct {
	marks
	flow statmount.Flow
}

// marks are the flags and options of a mount and its file system.
type marks struct {
	attributes uint64
	superFlags uint32
	options    string
}

// words keeps strings and lists of which a table has many of the same.
// Its zero value is ready for use.
type words struct {
	texts map[string]string
	lists map[marks]lists
}

// lists are the options of a mount, of its file system, and both as List shows them.
type lists struct{ own, super, shown []string }

func listsOf(own, super []string) lists {
	return lists{own, super, AllOptions(mount.Entry{Options: own, SuperOptions: super})}
}

func (n *node) show(l lists) {
	n.entry.Options, n.entry.SuperOptions, n.shown = l.own, l.super, l.shown
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

func (w *words) of(m marks) lists {
	l, ok := w.lists[m]
	if !ok {
		if w.lists == nil {
			w.lists = make(map[marks]lists)
		}
		l = listsOf(attributeWords(m.attributes), append(superFlagWords(m.superFlags), splitShown(m.options)...))
		w.lists[m] = l
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
	n.update(r, w)
	return n
}

// isAt reports whether the record says of the mount what the graph goes by, as far as
// it was asked for.
func (n *node) isAt(r statmount.Record, asked statmount.Fields) bool {
	return n.parent == r.Parent() && n.entry.ID == r.OldID() && n.entry.ParentID == r.OldParent() && n.entry.Device == r.Device() &&
		(asked&statmount.Target == 0 || n.entry.Target == string(r.Target())) &&
		(asked&statmount.Root == 0 || n.entry.Root == string(r.Root()))
}

// update takes over what the graph does not go by, as mountinfo shows it.
func (n *node) update(r statmount.Record, w *words) {
	now := sight{marks{r.Attributes(), r.SuperFlags(), n.seen.options}, r.Flow()}
	if now.options != string(r.Options()) {
		now.options = w.text(r.Options())
	}
	if now == n.seen {
		return
	}
	n.seen = now
	n.show(w.of(now.marks))
	n.entry.Propagation = propagationWords(now.flow)
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

// isShown reports whether mountinfo would have a line for the mount, if the record was
// asked for it: it leaves out what the root directory of the process does not reach.
func isShown(r statmount.Record, asked statmount.Fields) bool {
	return asked&statmount.Target == 0 || len(r.Target()) > 0
}

// cloneOf returns an entry that shares nothing with e.
func cloneOf(e mount.Entry) mount.Entry {
	e.Options = slices.Clone(e.Options)
	e.SuperOptions = slices.Clone(e.SuperOptions)
	e.Propagation = slices.Clone(e.Propagation)
	return e
}

func idsOf(nodes []*node) []uint64 {
	ids := make([]uint64, len(nodes))
	for i, n := range nodes {
		ids[i] = n.id
	}
	return ids
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

// pointsOf returns nodes as List shows them. Their options are parts of one array, as
// in [clones].
func pointsOf(nodes []*node) []mount.MountPoint {
	size := 0
	for _, n := range nodes {
		size += len(n.shown)
	}
	array, points := make([]string, 0, size), make([]mount.MountPoint, len(nodes))
	for i, n := range nodes {
		p := &points[i]
		p.Device, p.Path, p.Type = n.entry.Source, n.entry.Target, n.entry.FSType
		array, p.Opts = copyInto(array, n.shown)
	}
	return points
}

// nodesOf makes nodes to be shown, of no graph.
func nodesOf(entries []mount.Entry) []*node {
	nodes := make([]*node, len(entries))
	for i, e := range entries {
		nodes[i] = &node{entry: e, shown: AllOptions(e)}
	}
	return nodes
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
