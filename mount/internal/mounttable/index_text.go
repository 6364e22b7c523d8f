package mounttable

import (
	"errors"
	"fmt"
	"strings"

	"github.com/podvol/podvol/mount/internal/statmount"
)

// identity is what statmount(2) says of a mount and mountinfo does not, and what tells
// which line of mountinfo is its.
type identity struct {
	id, parent       uint64
	oldID, oldParent int
	device           uint64
}

// errUnlike says that mountinfo and listmount(2) did not show the same mounts in the
// same order, or that the table changed before both were read.
var errUnlike = errors.New("the mount table was read in two states")

// loadText reads a table of which nothing is known yet. The text of mountinfo costs
// the kernel less than all strings of single mounts. Their unique ids, which it does not
// have, are read beside it.
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
	var ids []identity
	if !x.byMountinfo {
		var err error
		if ids, err = x.identities(); err != nil {
			x.goByMountinfo()
		}
	}
	b := builder{graph: newGraph(len(ids)), ids: ids, byLine: x.byMountinfo}
	for chunk := range text {
		if err := b.add(chunk); err != nil {
			return err
		}
	}
	if failed != nil {
		return failed
	}
	if !x.byMountinfo {
		changed, named, err := x.poll()
		if err == nil && (changed || named || len(b.ids) > 0) {
			err = errUnlike
		}
		if err != nil {
			return err
		}
	}
	x.graph = b.graph
	return nil
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

// identities are those of all mounts, in the order of mountinfo. It is an error if the
// kernel does not tell of single mounts all that mountinfo does: it leaves out only
// sources that are empty (since 6.13).
func (x *Table) identities() ([]identity, error) {
	ids, err := x.listIDs()
	if err != nil {
		return nil, err
	}
	all, buffer, complete := make([]identity, 0, len(ids)), make([]byte, 4096), false
	for i, id := range ids {
		want := statmount.SuperBasic | statmount.MountBasic
		if !complete && i < 100 {
			want |= statmount.Source
		}
		r, err := x.readRecord(id, want, &buffer)
		if statmount.IsGone(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		complete = complete || r.Has(statmount.Source)
		all = append(all, identity{id, r.Parent(), r.OldID(), r.OldParent(), r.Device()})
	}
	if !complete {
		return nil, errIncomplete
	}
	return all, nil
}

// builder makes a graph of the lines of mountinfo.
type builder struct {
	graph *graph
	// ids are those of the lines to come. If they are not known, byLine, each mount has
	// mountinfo's own.
	ids    []identity
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
		is := identity{uint64(l.ID), uint64(l.ParentID), l.ID, l.ParentID, l.Device}
		age := uint64(len(b.graph.nodes))
		if !b.byLine {
			if len(b.ids) == 0 || b.ids[0].oldID != l.ID || b.ids[0].oldParent != l.ParentID || b.ids[0].device != l.Device {
				return errUnlike
			}
			is, b.ids = b.ids[0], b.ids[1:]
			age = is.id
		}
		if len(b.room) == 0 {
			b.room = make([]node, 64)
		}
		n := &b.room[0]
		b.room = b.room[1:]
		n.id, n.parent, n.age, n.entry = is.id, is.parent, age, l.Entry
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
