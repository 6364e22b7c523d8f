package manifestdir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/inotify"
)

// Watch reports that the files of one directory may have changed, through
// inotify(7). It reports no more than that: its user scans the directory, so
// lost, merged and superfluous events do no harm. The directory may go and come
// back. Watch does not see
//
//   - changes by another machine, if the directory is on a network file system;
//   - changes of files elsewhere that links in the directory lead to.
type Watch struct {
	dir     string
	changed chan struct{} // holds a value after a change
	inotify *inotify.Instance
	ended   sync.WaitGroup

	// The goroutine's own.
	inside, above int32 // watch descriptors, -1 without one
	aboveEntry    string
}

const (
	insideEvents = unix.IN_CLOSE_WRITE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_CREATE | unix.IN_ATTRIB |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	aboveEvents = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
)

// NewWatch watches a directory until Close. The path is absolute; the directory may
// be missing.
func NewWatch(dir string) (*Watch, error) {
	instance, err := inotify.New()
	if err != nil {
		return nil, fmt.Errorf("watching %s: %w", dir, err)
	}
	w := &Watch{dir: dir, changed: make(chan struct{}, 1), inotify: instance, inside: -1, above: -1}
	if err := w.arm(); err != nil {
		w.inotify.Close()
		return nil, fmt.Errorf("watching %s: %w", dir, err)
	}
	w.ended.Go(w.read)
	return w, nil
}

// Changed returns the channel that holds a value after a change.
func (w *Watch) Changed() <-chan struct{} { return w.changed }

// Close ends the watch. It must be called once.
func (w *Watch) Close() {
	w.inotify.Close() // which ends the read
	w.ended.Wait()
}

func (w *Watch) tell() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// read turns events into changes.
func (w *Watch) read() {
	for {
		events, err := w.inotify.Read()
		if err != nil {
			return
		}
		tell, lost := w.judge(events)
		if lost {
			_ = w.arm() // if that fails, the last state stays, and the next event tries again
		}
		if tell || lost {
			w.tell()
		}
	}
}

// judge reports whether the events contain a change, and whether the watches may
// be on the wrong directories.
func (w *Watch) judge(events []inotify.Event) (tell, lost bool) {
	for _, e := range events {
		switch {
		case e.Lost():
			return true, true
		case e.Watch == w.inside:
			tell = true
			lost = lost || e.Mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0
		case e.Watch == w.above:
			lost = lost || e.Name == w.aboveEntry || e.Name == ""
		}
	}
	return tell, lost
}

// arm watches the directory. It also watches the directory's parent, or while the
// directory is missing the nearest existing parent.
func (w *Watch) arm() error {
	for {
		entry, above, err := w.addAbove()
		if err != nil {
			return err
		}
		inside, err := w.inotify.Add(w.dir, insideEvents)
		if err != nil && !missing(err) {
			return err
		}
		if err != nil {
			inside = -1
		}
		w.replace(inside, above)
		w.aboveEntry = filepath.Base(entry)
		// A directory that was made before the watch of its parent causes no
		// event.
		if info, err := os.Stat(entry); inside >= 0 || err != nil || !info.IsDir() {
			return nil
		}
	}
}

// addAbove watches the nearest existing parent, and returns the path in it that
// matters. It skips a parent that may not be read.
func (w *Watch) addAbove() (entry string, wd int32, err error) {
	entry = w.dir
	for {
		parent := filepath.Dir(entry)
		wd, err = w.inotify.Add(parent, aboveEvents)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return entry, -1, nil
		case err == nil || !missing(err) || parent == entry:
			return entry, wd, err
		}
		entry = parent
	}
}

// replace drops the watches of directories that are no longer at their place.
func (w *Watch) replace(inside, above int32) {
	for _, old := range []int32{w.inside, w.above} {
		if old >= 0 && old != inside && old != above {
			w.inotify.Remove(old)
		}
	}
	w.inside, w.above = inside, above
}

func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}
