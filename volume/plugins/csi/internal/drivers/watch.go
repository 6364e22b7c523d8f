package drivers

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/inotify"
)

// watch tells of changes below a directory, by inotify(7). It tells no more than that
// there may be one: its user looks again.
type watch struct {
	inotify *inotify.Instance
	changed chan struct{}
	ended   sync.WaitGroup
}

const watchedEvents = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_ONLYDIR | unix.IN_DONT_FOLLOW

func newWatch() (*watch, error) {
	instance, err := inotify.New()
	if err != nil {
		return nil, err
	}
	w := &watch{inotify: instance, changed: make(chan struct{}, 1)}
	w.ended.Go(func() {
		for {
			if _, err := w.inotify.Read(); err != nil {
				return
			}
			select {
			case w.changed <- struct{}{}:
			default:
			}
		}
	})
	return w, nil
}

func (w *watch) close() {
	w.inotify.Close() // which ends the read
	w.ended.Wait()
}

// socketID tells one socket at a path from the next.
type socketID struct {
	device, inode uint64
	changed       unix.Timespec
}

// registry is sockets for a directory that somebody may remove. Its parent is watched, too: a
// removed directory says nothing of it while a registrar has a socket open that was in it.
func (w *watch) registry(dir string) (map[string]socketID, error) {
	if _, err := w.inotify.Add(filepath.Dir(dir), unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_ONLYDIR); err != nil {
		return nil, err
	}
	return w.sockets(dir)
}

// sockets finds the sockets below a directory, whose directories are watched before they
// are read. Names that begin with a dot are left out, as are links.
func (w *watch) sockets(dir string) (map[string]socketID, error) {
	found := make(map[string]socketID)
	if _, err := w.inotify.Add(dir, watchedEvents); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case strings.HasPrefix(e.Name(), "."):
		case e.IsDir():
			below, err := w.sockets(path)
			if err != nil {
				continue // it went meanwhile, or is another user's
			}
			for path, id := range below {
				found[path] = id
			}
		case e.Type() == fs.ModeSocket:
			var s unix.Stat_t
			if unix.Lstat(path, &s) == nil {
				found[path] = socketID{uint64(s.Dev), s.Ino, s.Ctim}
			}
		}
	}
	return found, nil
}

// checkSocket refuses a socket that others could have made, or could take part in.
func checkSocket(path string) error {
	var s unix.Stat_t
	if err := unix.Lstat(path, &s); err != nil {
		return &fs.PathError{Op: "lstat", Path: Shown(path), Err: err}
	}
	shown := Shown(path)
	switch {
	case s.Mode&unix.S_IFMT != unix.S_IFSOCK:
		return fmt.Errorf("%s is no socket", shown)
	case s.Uid != 0 && int(s.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d, who is neither root nor this process's", shown, s.Uid)
	case s.Mode&0o002 != 0:
		return fmt.Errorf("%s may be used by everybody (mode %04o)", shown, s.Mode&0o7777)
	case s.Nlink != 1:
		return fmt.Errorf("%s has %d names", shown, s.Nlink)
	}
	return nil
}

// Pauses between the attempts for one socket: the kubelet's.
const (
	FirstPause = 500 * time.Millisecond
	longPause  = 2*time.Minute + 2*time.Second
)
