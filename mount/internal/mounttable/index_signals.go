package mounttable

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/util/eintr"
)

// errElsewhere: the calling thread has another root directory or mount
// namespace than the process.
var errElsewhere = errors.New("the calling thread sees another mount table")

// rootDir tells root directories apart; in two mount namespaces the mount
// differs.
type rootDir struct {
	mount, inode uint64
	device       uint64
}

// rootAt asks no server: the attributes may be old ones.
func (x *Table) rootAt(path string) (rootDir, error) {
	const (
		flags         = unix.AT_STATX_DONT_SYNC | unix.AT_NO_AUTOMOUNT
		uniqueMountID = 0x4000 // STATX_MNT_ID_UNIQUE, since 6.8; the short one since 5.8
		mask          = unix.STATX_INO | unix.STATX_MNT_ID | uniqueMountID
	)
	var st unix.Statx_t
	err := eintr.Do(func() error { return x.statx(unix.AT_FDCWD, path, flags, mask, &st) })
	if err != nil {
		return rootDir{}, &os.PathError{Op: "statx", Path: path, Err: err}
	}
	return rootDir{st.Mnt_id, st.Ino, unix.Mkdev(st.Dev_major, st.Dev_minor)}, nil
}

// refresh brings the graph up to what has happened before the call, as far as
// the kernel gives a signal of it. The error matches errElsewhere on a thread
// that has left the others.
func (x *Table) refresh() error {
	here, err := x.rootAt("/")
	if err != nil {
		return err
	}
	if x.info == nil || here != x.root {
		process, err := x.rootAt("/proc/self/root/.")
		if err != nil {
			return fmt.Errorf("open the mount table: %w", err)
		}
		if here != process {
			return errElsewhere
		}
		x.close()
		x.root = process
		if err := x.open(); err != nil {
			return err
		}
	}
	if x.graph == nil {
		return x.load()
	}
	return x.takeSignals()
}

// open begins to hear of changes, so that nothing that is read later can change unheard.
func (x *Table) open() (err error) {
	if x.info, err = OpenMountinfo(x.path); err != nil {
		return fmt.Errorf("open the mount table: %w", err)
	}
	return nil
}

// watch has events name the mounts of later changes. It waits for the first change, since
// a process that ends soon would wait for its group of events to be closed, which takes
// the kernel 5 to 10 ms.
func (x *Table) watch() {
	if x.watched || x.byMountinfo {
		return
	}
	x.watched = true
	var err error
	if x.events, err = x.kernel.Watch(); err != nil {
		x.events = nil // not in this kernel, or not permitted
	}
}

func (x *Table) close() {
	for _, f := range []*os.File{x.info, x.events} {
		if f != nil {
			f.Close()
		}
	}
	x.info, x.events, x.graph, x.watched, x.byMountinfo = nil, nil, nil, false, false
}

// takeSignals reads what the signals say has changed.
func (x *Table) takeSignals() error {
	changed, named, err := x.poll()
	switch {
	case err != nil:
		return err
	case named:
		return x.takeEvents()
	case changed && x.events == nil:
		x.watch()
		// Comparing lists of ids would not do: a mount that is moved keeps its.
		return x.load()
	}
	return nil // options of mounts: they are read again before each answer
}

// poll asks both descriptors once, without waiting: whether there was a change,
// and whether there are events that name mounts.
func (x *Table) poll() (changed, named bool, err error) {
	fds := []unix.PollFd{{Fd: int32(x.info.Fd()), Events: unix.POLLPRI}, {Fd: -1, Events: unix.POLLIN}}
	if x.events != nil {
		fds[1].Fd = int32(x.events.Fd())
	}
	_, err = eintr.Get(func() (int, error) { return unix.Poll(fds, 0) })
	changed, named = fds[0].Revents != 0, fds[1].Revents != 0
	if changed || named {
		x.signals++
	}
	return changed, named, os.NewSyscallError("poll", err)
}

// takeEvents reads the mounts that events are waiting of.
func (x *Table) takeEvents() error {
	var ids []uint64
	complete := true
	buffer := x.scratch()
	for {
		n, err := eintr.Get(func() (int, error) { return unix.Read(int(x.events.Fd()), buffer) })
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return os.NewSyscallError("read mount events", err)
		}
		var all bool
		ids, all = statmount.Events(buffer[:n], ids)
		if complete = complete && all && len(ids) < maxEvents; !complete {
			ids = ids[:0]
		}
	}
	if !complete {
		return x.loadOnce()
	}
	return x.follow(ids)
}

// maxEvents is how many are followed one by one.
const maxEvents = 4096

// follow reads mounts that were attached, detached or moved, and those that
// changed with them: mounts below have another target then, and mounts at the
// same place another parent.
func (x *Table) follow(ids []uint64) error {
	slices.Sort(ids)
	ids = slices.Compact(ids)
	todo := make(map[uint64]bool, len(ids))
	for _, id := range ids {
		x.subtree(id, todo)
	}
	if err := x.readSet(todo); err != nil {
		return err
	}
	beside := make(map[uint64]bool)
	for _, id := range ids {
		n := x.graph.nodes[id]
		if n == nil {
			continue
		}
		for other := range x.graph.byTarget.all(n.entry.Target) {
			if !todo[other.id] {
				beside[other.id] = true
			}
		}
	}
	return x.readSet(beside)
}

func (x *Table) subtree(id uint64, into map[uint64]bool) {
	todo := []uint64{id}
	for len(todo) > 0 {
		id = todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if into[id] {
			continue
		}
		into[id] = true
		for child := range x.graph.byParent.all(id) {
			todo = append(todo, child.id)
		}
	}
}

func (x *Table) readSet(set map[uint64]bool) error {
	if len(set) == 0 {
		return nil
	}
	ids := make([]uint64, 0, len(set))
	for id := range set {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	_, err := x.read(ids, changing)
	return err
}

// watchMountinfo sends after each change of the table in the file at path,
// coalesced, until ctx ends; then the channel is closed and nothing of the
// watch is left. Changes count from the call on.
func watchMountinfo(ctx context.Context, path string) <-chan struct{} {
	changes := make(chan struct{}, 1)
	table, err := OpenMountinfo(path)
	if err != nil {
		close(changes)
		return changes
	}
	wakeRead, wakeWrite, err := os.Pipe()
	if err != nil {
		table.Close()
		close(changes)
		return changes
	}
	// Closing the write end is what wakes the poll.
	stop := context.AfterFunc(ctx, func() { wakeWrite.Close() })
	go func() {
		defer close(changes)
		defer table.Close()
		defer wakeRead.Close()
		defer func() {
			if stop() {
				wakeWrite.Close()
			}
		}()
		forwardChanges(ctx, table, wakeRead, changes)
	}()
	return changes
}

// OpenMountinfo opens a mount table out of reach of Go's own poller, which would
// take notice of changes in our place: each is told once for an open file.
func OpenMountinfo(path string) (*os.File, error) {
	fd, err := eintr.Get(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

func forwardChanges(ctx context.Context, table, wake *os.File, changes chan<- struct{}) {
	for ctx.Err() == nil {
		changed, err := pollChange(table, -1, wake)
		if err != nil || ctx.Err() != nil {
			return
		}
		if !changed {
			continue
		}
		// One that waits to be received tells of all changes until then, so that none is
		// looked for meanwhile.
		select {
		case changes <- struct{}{}:
		case <-ctx.Done():
		}
	}
}

// pollChange waits until the table has changed since it was opened or last
// polled, or one of wake becomes readable or is closed at its other end, for
// at most timeout milliseconds; -1 means without limit.
func pollChange(table *os.File, timeout int, wake ...*os.File) (changed bool, err error) {
	fds := []unix.PollFd{{Fd: int32(table.Fd()), Events: unix.POLLPRI}}
	for _, w := range wake {
		fds = append(fds, unix.PollFd{Fd: int32(w.Fd()), Events: unix.POLLIN})
	}
	_, err = eintr.Get(func() (int, error) { return unix.Poll(fds, timeout) })
	return fds[0].Revents&(unix.POLLPRI|unix.POLLERR) != 0, err
}
