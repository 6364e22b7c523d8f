package mounttable

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/internal/statmount"
)

// load reads the whole table anew. An unchanged mount keeps its node.
func (x *Table) load() error {
	for range maxLoads {
		x.complete = x.signals
		if err := x.loadOnce(); err != nil {
			return fmt.Errorf("read the mount table: %w", err)
		}
		// What came meanwhile may have been missed by a part of the reading.
		changed, named, err := x.poll()
		if err == nil && named {
			err = x.takeEvents()
		}
		if err != nil || !changed && !named {
			return err
		}
	}
	return nil // a table that never rests: the last reading has to do
}

const maxLoads = 5

func (x *Table) loadOnce() error {
	x.fresh = true
	x.loads++
	if x.graph == nil || x.byMountinfo {
		if err := x.loadText(); !errors.Is(err, errUnlike) {
			return err
		}
	}
	if err := x.loadByID(); err == nil {
		return nil
	}
	x.goByMountinfo()
	return x.loadText()
}

func (x *Table) loadByID() error {
	ids, err := x.listIDs()
	if err != nil {
		return err
	}
	if x.graph == nil {
		x.graph = newGraph(len(ids))
	}
	if _, err := x.read(ids, changing); err != nil {
		return err
	}
	for _, n := range x.graph.nodes {
		if n.load != x.loads {
			x.graph.remove(n)
		}
	}
	return nil
}

func (x *Table) listIDs() ([]uint64, error) {
	const step = 2048
	ids := make([]uint64, 0, step)
	for {
		start := len(ids)
		ids = append(ids, make([]uint64, step)...)
		var after uint64
		if start > 0 {
			after = ids[start-1]
		}
		n, err := x.kernel.List(after, ids[start:])
		if err != nil {
			return nil, err
		}
		ids = ids[:start+n]
		if n < step {
			return ids, nil
		}
	}
}

// findings are what a reader of mounts has come upon.
type findings struct {
	placed []*node  // new, or elsewhere than before
	gone   []uint64 // not there any more
	err    error
}

// read reads some fields of known mounts again, none of [lasting], and enters new mounts
// with all fields. It reports whether a known one is gone or is now elsewhere.
func (x *Table) read(ids []uint64, fields statmount.Fields) (moved bool, err error) {
	// A mount takes a microsecond or two: a second processor pays from some
	// hundreds on.
	parts := min(1+len(ids)/512, runtime.GOMAXPROCS(0), 4)
	found := make([]findings, parts)
	if parts == 1 {
		x.scratch()
		x.readPart(ids, fields, &x.buffer, &found[0])
	} else {
		var readers sync.WaitGroup
		for i := range parts {
			part := ids[i*len(ids)/parts : (i+1)*len(ids)/parts]
			readers.Go(func() {
				buffer := make([]byte, 4096)
				x.readPart(part, fields, &buffer, &found[i])
			})
		}
		readers.Wait()
	}
	for _, f := range found {
		if f.err != nil {
			return false, f.err
		}
		for _, id := range f.gone {
			if n := x.graph.nodes[id]; n != nil {
				x.graph.remove(n)
				moved = true
			}
		}
		for _, n := range f.placed {
			if old := x.graph.nodes[n.id]; old != nil {
				x.graph.remove(old)
				moved = true
			}
			x.graph.add(n)
		}
	}
	return moved, nil
}

// scratch is a buffer for the holder of the lock.
func (x *Table) scratch() []byte {
	if x.buffer == nil {
		x.buffer = make([]byte, 4096)
	}
	return x.buffer
}

// readPart is one of several readers: it changes nodes of its own part only,
// and those only where the graph does not go by it.
func (x *Table) readPart(ids []uint64, fields statmount.Fields, buffer *[]byte, found *findings) {
	var w words
	for _, id := range ids {
		known, want := x.graph.nodes[id], fields
		if known == nil {
			want = changing | lasting
		}
		r, err := x.readRecord(id, want, buffer)
		if err == nil && known != nil && isShown(r, want) && !known.isAt(r, want) {
			known, want = nil, changing|lasting
			r, err = x.readRecord(id, want, buffer)
		}
		switch {
		case statmount.IsGone(err) || err == nil && !isShown(r, want):
			found.gone = append(found.gone, id)
		case err != nil:
			found.err = err
			return
		case known == nil:
			n := newNode(r, &w)
			n.load = x.loads
			found.placed = append(found.placed, n)
		default:
			known.update(r, &w)
			known.load = x.loads
		}
	}
}

// readRecord makes the buffer as large as it takes: some types show long
// options.
func (x *Table) readRecord(id uint64, want statmount.Fields, buffer *[]byte) (statmount.Record, error) {
	for {
		r, err := x.kernel.Read(id, want, *buffer)
		if !errors.Is(err, unix.EOVERFLOW) || len(*buffer) > 1<<24 {
			return r, err
		}
		*buffer = make([]byte, 4*len(*buffer))
	}
}
