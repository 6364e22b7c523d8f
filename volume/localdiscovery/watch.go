package localdiscovery

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockdev"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/inotify"
)

// watched is what a [pathWatch] shall watch.
type watched struct {
	// dirs are directories: all that comes and goes in them.
	dirs []string
	// links are paths: where they lead to.
	links []string
	// busy are devices: that a program which could write to them closes them.
	busy []string
}

// pathWatch tells that something may have changed about paths, through inotify(7)
// and, for swap space, poll(2) of /proc/swaps. It says no more than that: the
// receiver looks for itself, so that lost, merged and superfluous signs do no
// harm.
type pathWatch struct {
	changed chan struct{} // holds a value after a change
	failed  chan error    // holds why changes are no longer told of

	inotify *inotify.Instance
	stop    *os.File // ends the wait for swap space
	ended   sync.WaitGroup

	mu sync.Mutex
	// names are those that matter in a directory, by watch descriptor; "" is all.
	names map[int32]map[string]bool
}

const (
	dirEvents  = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	busyEvents = unix.IN_CLOSE_WRITE
	selfEvents = unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_IGNORED | unix.IN_UNMOUNT | unix.IN_CLOSE_WRITE
	// maxHops is how many links in a row the kernel follows (path_resolution(7)).
	maxHops = 40
)

func newPathWatch(system blockdev.System) (*pathWatch, error) {
	wake, stop, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	instance, err := inotify.New()
	if err != nil {
		wake.Close()
		stop.Close()
		return nil, fmt.Errorf("watch directories: %w", err)
	}
	w := &pathWatch{changed: make(chan struct{}, 1), failed: make(chan error, 2), inotify: instance, stop: stop, names: make(map[int32]map[string]bool)}
	swaps := openSwaps(system)
	w.ended.Go(w.forward)
	w.ended.Go(func() { w.forwardSwaps(wake, swaps) })
	return w, nil
}

// openSwaps opens the table out of reach of Go's own poller, which does not wait
// for POLLPRI. It returns nil where this kernel has none.
func openSwaps(system blockdev.System) *os.File {
	proc := system.Proc
	if proc == "" {
		proc = "/proc"
	}
	fd, err := eintr.Get(func() (int, error) { return unix.Open(proc+"/swaps", unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), "swaps")
}

func (w *pathWatch) close() {
	w.inotify.Close() // which ends the read
	w.stop.Close()    // which ends the poll
	w.ended.Wait()
}

func (w *pathWatch) tell() {
	select {
	case w.changed <- struct{}{}:
	default: // one waits already
	}
}

// forward turns events into changes.
func (w *pathWatch) forward() {
	for {
		events, err := w.inotify.Read()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			w.failed <- err
			return
		}
		if w.matters(events) {
			w.tell()
		}
	}
}

// forwardSwaps tells of changes of the swap space until wake is readable.
func (w *pathWatch) forwardSwaps(wake, swaps *os.File) {
	defer wake.Close()
	if swaps == nil {
		return
	}
	defer swaps.Close()
	fds := []unix.PollFd{{Fd: int32(wake.Fd()), Events: unix.POLLIN}, {Fd: int32(swaps.Fd()), Events: unix.POLLPRI}}
	for {
		if _, err := eintr.Get(func() (int, error) { return unix.Poll(fds, -1) }); err != nil {
			w.failed <- err
			return
		}
		if fds[0].Revents != 0 {
			return
		}
		w.tell()
	}
}

func (w *pathWatch) matters(events []inotify.Event) (matters bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range events {
		names := w.names[e.Watch]
		if e.Lost() || names != nil && (e.Mask&selfEvents != 0 || names[""] || names[e.Name]) {
			matters = true
		}
		if e.Mask&unix.IN_IGNORED != 0 {
			delete(w.names, e.Watch) // the kernel has dropped the watch
		}
	}
	return matters
}

// set watches just this, and reports whether something is watched that was not
// before. A missing file is watched for where it would appear. It may block where
// a path leads into a file system that does not answer.
func (w *pathWatch) set(want watched) (grown bool, err error) {
	next := make(map[int32]map[string]bool)
	add := func(path, name string, events uint32) error {
		wd, err := w.inotify.Add(path, events)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, fs.ErrPermission) {
			return nil // its own parent is watched
		}
		if err != nil {
			return err
		}
		if next[wd] == nil {
			next[wd] = make(map[string]bool)
		}
		next[wd][name] = true
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.names[wd] == nil {
			w.names[wd] = make(map[string]bool)
		}
		if !w.names[wd][name] {
			w.names[wd][name] = true
			grown = true
		}
		return nil
	}
	for _, path := range append(append([]string(nil), want.dirs...), want.links...) {
		for _, s := range trail(path) {
			if err := add(s.dir, s.name, dirEvents); err != nil {
				return grown, err
			}
		}
	}
	for _, dir := range want.dirs {
		if err := add(dir, "", dirEvents); err != nil {
			return grown, err
		}
	}
	for _, device := range want.busy {
		if err := add(device, "", busyEvents); err != nil {
			return grown, err
		}
	}
	w.drop(next)
	return grown, nil
}

// drop ends the watches that are not needed any more.
func (w *pathWatch) drop(wanted map[int32]map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for wd := range w.names {
		if wanted[wd] == nil {
			w.inotify.Remove(wd)
		}
	}
	w.names = wanted
}

// step is one name on the way that a path leads.
type step struct{ dir, name string }

// trail returns the names that decide where an absolute path leads, also of links
// on the way, until the first missing one.
func trail(path string) (steps []step) {
	dir, rest, hops := "/", strings.Split(strings.Trim(path, "/"), "/"), 0
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			dir = filepath.Dir(dir)
			continue
		}
		steps = append(steps, step{dir, name})
		at := filepath.Join(dir, name)
		info, err := os.Lstat(at)
		if err != nil {
			return steps
		}
		if info.Mode().Type() != fs.ModeSymlink {
			dir = at
			continue
		}
		target, err := os.Readlink(at)
		if hops++; err != nil || hops > maxHops {
			return steps
		}
		if filepath.IsAbs(target) {
			dir = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return steps
}
