package mounttable

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/util/eintr"
)

// Table is the table of the process's mount namespace, kept in memory. Before each
// answer it asks once for the kernel's signals, without waiting, and reads the answer's
// mounts again, since they may change without a signal.
//
//   - mountinfo is readable with priority after a mount was attached, detached, moved or
//     given other options. A fanotify group, where there is one, names the mounts that
//     were attached or detached.
//   - There is no signal of renamed or removed directories, nor of a file system's options
//     that were changed from another namespace or by fsconfig(2). Mountinfo has none of
//     propagation changed by mount(2).
//   - It has no goroutine. Its descriptors are opened at the first question and the first
//     change, and closed when the index is dropped.
//   - The lock is never held while a file system is asked. Links in a path are read
//     without it.
type Table struct {
	kernel statmount.Kernel
	statx  Statx
	path   string // of mountinfo

	mu     sync.Mutex
	root   rootDir  // of the process, when the descriptors were opened
	info   *os.File // nil before the first question
	events *os.File // nil before the first change, or if the kernel has none or denies them
	// watched: events were asked for.
	watched bool
	// byMountinfo: the kernel has no calls for single mounts, or they do not
	// tell all that mountinfo does.
	byMountinfo bool
	graph       *graph
	// signals counts those that have come; complete is its value when the whole
	// table was read last, loads the number of these times.
	signals, complete, loads uint64
	// fresh: the whole table was read since the question was asked.
	fresh  bool
	way    []*node // scratch of walks
	buffer []byte  // scratch of single reads
}

// Statx is statx(2), so that tests can have it answer otherwise.
type Statx func(dir int, path string, flags, mask int, st *unix.Statx_t) error

// New returns a table that reads the kernel at the first question.
func New(kernel statmount.Kernel) *Table {
	return &Table{kernel: kernel, statx: unix.Statx, path: MountinfoPath}
}

// TellsApart reports whether the table has the ids that the kernel never gives again.
func (x *Table) TellsApart() (bool, error) {
	if _, err := x.All(); err != nil {
		return false, err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return !x.byMountinfo, nil
}

// Reads counts how often the table was read as a whole, and the kernel's signals of a
// change.
func (x *Table) Reads() (reads, signals uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.loads, x.signals
}

// maxTries is how often an answer is sought again after the graph turned out to
// be old. A table that changes faster is read at once, from mountinfo.
const maxTries = 3

var errRestless = errors.New("the mount table changes too fast")

// answer brings the graph up to date and lets f answer from it, until f has
// met nothing that was out of date.
func (x *Table) answer(f func() (old bool, err error)) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.fresh = false
	if err := x.refresh(); err != nil {
		return x.failed(err)
	}
	return x.answerAgain(f)
}

// failed lets the next question begin anew: signals that were taken may not
// have been followed.
func (x *Table) failed(err error) error {
	if !errors.Is(err, errElsewhere) {
		x.close()
	}
	return err
}

// answerAgain is answer without looking for signals.
func (x *Table) answerAgain(f func() (old bool, err error)) error {
	for range maxTries {
		old, err := f()
		if err == nil && !old {
			return nil
		}
		if err == nil {
			err = x.load()
		}
		if err != nil {
			return x.failed(err)
		}
	}
	return errRestless
}

// At implements [mount.Table].
func (x *Table) At(target string) (mount.Entry, bool, error) {
	if !filepath.IsAbs(target) {
		return mount.Entry{}, false, fmt.Errorf("look up a mount: %q is not an absolute path", target)
	}
	clean := filepath.Clean(target)
	e, ok, err := x.mountedAt(clean)
	place := ""
	if err == nil && !ok {
		e, ok, place, err = lookUp(refreshed{x}, clean, os.Readlink)
	}
	if err == nil && !ok && place != "" {
		e, ok, err = x.lookAgain(place)
	}
	if isOfFiles(err) {
		return mount.Entry{}, false, fmt.Errorf("look up a mount: %w", err)
	}
	if err != nil {
		return Uncached{}.At(clean)
	}
	return e, ok, nil
}

// isOfFiles tells the errors of links in a path from the table's.
func isOfFiles(err error) bool {
	_, ok := errors.AsType[*linkError](err)
	return ok
}

// lookAgain makes sure that nothing is mounted at place, where a directory above
// a mount point may have been renamed: there is no signal of that. It only looks
// in a directory where links were looked for already.
func (x *Table) lookAgain(place string) (e mount.Entry, ok bool, err error) {
	if _, ok, err := (refreshed{x}).mountedAt(path.Dir(place)); ok || err != nil {
		return mount.Entry{}, false, err // no directory to be renamed lies between
	}
	if maybe, err := x.mayBeMounted(place); err != nil || !maybe {
		return mount.Entry{}, false, err
	}
	first := true
	err = x.answer(func() (old bool, err error) {
		if first {
			first = false
			return true, nil
		}
		e, ok, old, err = x.find(place)
		return old, err
	})
	return e, ok, err
}

// mayBeMounted looks at a place without following a link there and without
// asking a server. An error says nothing of it, but that it does not exist.
func (x *Table) mayBeMounted(place string) (bool, error) {
	const flags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
	var st unix.Statx_t
	err := eintr.Do(func() error { return x.statx(unix.AT_FDCWD, place, flags, 0, &st) })
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	if err != nil {
		return false, &os.PathError{Op: "statx", Path: place, Err: err}
	}
	told := st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT != 0 // since Linux 5.8
	return !told || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// mountedAt is [mountedAt]; the mount that is found is read again.
func (x *Table) mountedAt(target string) (e mount.Entry, ok bool, err error) {
	err = x.answer(func() (old bool, err error) {
		e, ok, old, err = x.find(target)
		return old, err
	})
	return e, ok, err
}

func (x *Table) find(target string) (e mount.Entry, ok, old bool, err error) {
	if !x.graph.byTarget.has(target) {
		return mount.Entry{}, false, false, nil // the usual answer, and cheap
	}
	x.way = x.graph.walk(target, x.way)
	last := len(x.way) - 1
	if last < 0 || x.way[last].entry.Target != target {
		return mount.Entry{}, false, false, nil
	}
	// Those on the way need not be read: their part of the target is in its own.
	if old, err = x.recheck(one(x.way[last])); old || err != nil {
		return mount.Entry{}, false, old, err
	}
	return cloneOf(x.way[last].entry), true, false, nil
}

// refreshed is the view of an index that was brought up to date for a question
// and need not be for each part of it.
type refreshed struct{ x *Table }

func (r refreshed) mountedAt(target string) (e mount.Entry, ok bool, err error) {
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	if r.x.graph == nil {
		return mount.Entry{}, false, errElsewhere // closed by another question
	}
	err = r.x.answerAgain(func() (old bool, err error) {
		e, ok, old, err = r.x.find(target)
		return old, err
	})
	return e, ok, err
}

func (r refreshed) named(name string) (bool, error) {
	r.x.mu.Lock()
	defer r.x.mu.Unlock()
	return r.x.graph != nil && r.x.graph.byName.has(name), nil
}

// IsMounted is whether something is mounted at just target, which is clean.
func (x *Table) IsMounted(target string) (bool, error) {
	_, ok, err := x.mountedAt(target)
	if err != nil {
		entries, err := Uncached{}.All()
		_, ok = mountedAt(entries, target)
		return ok, err
	}
	return ok, nil
}

// recheck reads mounts again and reports whether one was not where the graph
// has it.
func (x *Table) recheck(nodes iter.Seq[*node]) (old bool, err error) {
	if x.byMountinfo {
		return false, nil
	}
	var few [8]uint64
	ids := few[:0]
	for n := range nodes {
		ids = append(ids, n.id)
	}
	return x.read(ids, changing)
}

func one(n *node) iter.Seq[*node] {
	return func(yield func(*node) bool) { yield(n) }
}

// BySource implements [mount.Table].
func (x *Table) BySource(source string) ([]mount.Entry, error) {
	found, err := x.hits(func(g *graph) iter.Seq[*node] { return g.bySource.all(source) })
	if err != nil {
		return Uncached{}.BySource(source)
	}
	return found, nil
}

// ByDevice implements [mount.Table].
func (x *Table) ByDevice(device uint64) ([]mount.Entry, error) {
	found, err := x.hits(func(g *graph) iter.Seq[*node] { return g.byDevice.all(device) })
	if err != nil {
		return Uncached{}.ByDevice(device)
	}
	return found, nil
}

func (x *Table) hits(of func(*graph) iter.Seq[*node]) (found []mount.Entry, err error) {
	err = x.answer(func() (old bool, err error) {
		if old, err = x.recheck(of(x.graph)); old || err != nil {
			return old, err
		}
		found = clones(inOrder(of(x.graph)))
		return false, nil
	})
	return found, err
}

// All implements [mount.Table]: every mount is read anew, in about the time that
// reading mountinfo takes.
func (x *Table) All() (all []mount.Entry, err error) {
	err = x.answer(func() (old bool, err error) {
		if !x.fresh {
			return true, nil
		}
		all = clones(x.graph.all())
		return false, nil
	})
	if err != nil {
		return Uncached{}.All()
	}
	return all, nil
}

// List is the table as mount-utils shows it, from memory where there was no
// signal since it was read. After a signal all options are read anew, but no paths:
// of those that changed the events say it.
func (x *Table) List() (points []mount.MountPoint, err error) {
	err = x.answer(func() (old bool, err error) {
		if x.complete != x.signals {
			if x.events == nil {
				return true, nil
			}
			x.complete = x.signals
			if old, err = x.read(idsOf(x.graph.all()), options); old || err != nil {
				return old, err
			}
		}
		points = pointsOf(x.graph.all())
		return false, nil
	})
	if err != nil {
		entries, err := Uncached{}.All()
		return pointsOf(nodesOf(entries)), err
	}
	return points, nil
}

// Refs returns the targets of the other mounts that show the same directory as
// target does, see [refsOf].
func (x *Table) Refs(target string) (refs []string, err error) {
	err = x.answer(func() (old bool, err error) {
		refs = nil
		x.way = x.graph.walk(target, x.way)
		if len(x.way) == 0 {
			return false, nil
		}
		own := x.way[len(x.way)-1]
		if old, err = x.recheck(one(own)); old || err != nil {
			return old, err
		}
		same := x.graph.byRoot.all(window{own.entry.Device, shownAt(own.entry, target)})
		if old, err = x.recheck(same); old || err != nil {
			return old, err
		}
		for _, n := range inOrder(same) {
			if n != own && n.entry.Target != target {
				refs = append(refs, n.entry.Target)
			}
		}
		return false, nil
	})
	if err != nil {
		entries, err := Uncached{}.All()
		return refsOf(entries, target), err
	}
	return refs, nil
}

// Below implements [mount.belower].
func (x *Table) Below(dir string) (found []mount.Entry, err error) {
	err = x.answer(func() (old bool, err error) {
		below := x.graph.below(dir)
		if old, err = x.recheck(slices.Values(below)); old || err != nil {
			return old, err
		}
		found = clones(below)
		return false, nil
	})
	if err != nil {
		return mount.Below(Uncached{}, dir)
	}
	return found, nil
}

// Subscribe implements [mount.Table].
func (x *Table) Subscribe(ctx context.Context) <-chan struct{} {
	return watchMountinfo(ctx, x.path)
}
