package mounttable

import (
	"errors"
	"fmt"
	"strings"

	"github.com/podvol/podvol/mount/internal/statmount"
)

// identity is what statmount(2) says of a mount, to tell which line of mountinfo is its.
type identity struct {
	oldID, oldParent int
	device           uint64
}

// identities are the unique ids of all mounts, in the order of mountinfo, which does
// not have them.
type identities struct {
	ids []uint64
	// some of them, by their place in ids, were asked for more.
	some map[int]identity
}

// errUnlike says that mountinfo and listmount(2) did not show the same mounts in the
// same order, or that the table changed before both were read.
var errUnlike = errors.New("the mount table was read in two states")

// loadText reads a table of which nothing is known yet. The text of mountinfo costs
// the kernel less than all strings of single mounts. Their unique ids are listed
// beside it. Both are in the same order as long as the table does not change, which
// its signals tell. That order is made sure of at some mounts; each mount that is
// read later is compared with its line.
func (x *Table) loadText() error {
	if _, err := x.info.Seek(0, 0); err != nil {
		return err
	}
	var failed error
	text := make(chan string, 16)
	go func() {
		defer close(text)
		failed = chunks(x.info, func(chunk string) error { text <- chunk; return nil })
	}()
	defer func() {
		for range text { // until nobody reads the file any more
		}
	}()
	var known identities
	if !x.byMountinfo {
		var err error
		if known, err = x.identify(); errors.Is(err, errUnlike) {
			return err
		}
		if err != nil {
			x.goByMountinfo()
		}
	}
	b := builder{graph: newGraph(len(known.ids)), known: known, byLine: x.byMountinfo}
	for chunk := range text {
		if err := b.add(chunk); err != nil {
			return err
		}
	}
	if failed != nil {
		return failed
	}
	if !x.byMountinfo {
		if err := x.finishText(&b); err != nil {
			return err
		}
	}
	x.graph = b.graph
	return nil
}

// finishText adds the unique ids of parents, of which mountinfo has the others, and makes
// sure that the table has not changed since it was opened.
func (x *Table) finishText(b *builder) error {
	nodes := b.graph.all()
	if len(nodes) != len(b.known.ids) {
		return errUnlike
	}
	unique := make(map[int]uint64, len(nodes))
	for _, n := range nodes {
		unique[n.entry.ID] = n.id
	}
	for _, n := range nodes {
		parent, seen := unique[n.entry.ParentID]
		if !seen { // it cannot be reached from the root directory
			r, err := x.readRecord(n.id, statmount.MountBasic, &x.buffer)
			if err != nil || r.OldParent() != n.entry.ParentID {
				return errUnlike
			}
			parent = r.Parent()
		}
		n.parent = parent
	}
	changed, named, err := x.poll()
	if err == nil && (changed || named) {
		err = errUnlike
	}
	return err
}

// goByMountinfo does without the calls for single mounts: a kernel that lacks them
// or some fields, or denies them.
func (x *Table) goByMountinfo() {
	x.byMountinfo = true
	if x.events != nil {
		x.events.Close()
		x.events = nil
	}
}

var errIncomplete = errors.New("the kernel does not tell the sources of mounts")

// identify lists all mounts, and reads some of them: all of a short table. It is an error if
// the kernel does not tell of single mounts all that mountinfo does: it leaves out only
// sources that are empty (since 6.13).
func (x *Table) identify() (identities, error) {
	ids, err := x.listIDs()
	if err != nil {
		return identities{}, err
	}
	const few = 128
	step, complete := 1+len(ids)/few, false
	some := make(map[int]identity, few)
	x.scratch()
	for i, id := range ids {
		want := statmount.SuperBasic | statmount.MountBasic
		switch {
		case !complete && i < few:
			want |= statmount.Source
		case i%step != 0:
			continue
		}
		r, err := x.readRecord(id, want, &x.buffer)
		if statmount.IsGone(err) {
			return identities{}, errUnlike
		}
		if err != nil {
			return identities{}, err
		}
		complete = complete || r.Has(statmount.Source)
		some[i] = identity{r.OldID(), r.OldParent(), r.Device()}
	}
	if !complete {
		return identities{}, errIncomplete
	}
	return identities{ids, some}, nil
}

// builder makes a graph of the lines of mountinfo.
type builder struct {
	graph *graph
	// known are the ids. Without them, byLine, each mount has mountinfo's own.
	known  identities
	byLine bool
	words  map[[2]string]lists
	room   []node
}

func (b *builder) add(chunk string) error {
	for line := range strings.SplitSeq(chunk, "\n") {
		if line == "" {
			continue
		}
		l, err := parseMountinfoLine(line)
		if err != nil {
			return fmt.Errorf("%q in mountinfo: %w", line, err)
		}
		place := len(b.graph.nodes)
		id, age := uint64(l.ID), uint64(place)
		if !b.byLine {
			if place >= len(b.known.ids) {
				return errUnlike
			}
			if is, asked := b.known.some[place]; asked && is != (identity{l.ID, l.ParentID, l.Device}) {
				return errUnlike
			}
			id = b.known.ids[place]
			age = id
		}
		if len(b.room) == 0 {
			b.room = make([]node, 64)
		}
		n := &b.room[0]
		b.room = b.room[1:]
		n.id, n.parent, n.age, n.entry = id, uint64(l.ParentID), age, l.Entry
		n.show(b.lists(l))
		b.graph.add(n)
	}
	return nil
}

func (b *builder) lists(l infoLine) lists {
	key := [2]string{l.own, l.super}
	known, ok := b.words[key]
	if !ok {
		if b.words == nil {
			b.words = make(map[[2]string]lists)
		}
		known = listsOf(splitShown(l.own), splitShown(l.super))
		b.words[key] = known
	}
	return known
}
