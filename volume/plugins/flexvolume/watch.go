package flexvolume

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/inotify"
	"github.com/podvol/podvol/volume/plugins/flexvolume/internal/driver"
)

// Events that may make a driver usable: it was put there, written or given other permissions.
const events = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// Run implements [volume.RunningPlugin]: it wakes the volumes of a driver, by its name, when its
// program is installed or replaced. The directory of drivers need not exist. A node without
// such volumes watches nothing.
func (p *plugin) Run(ctx context.Context, wake func(source string)) error {
	select {
	case <-p.asked:
	case <-ctx.Done():
		return nil
	}
	for {
		err := p.watch(ctx, wake)
		if errors.Is(err, fs.ErrNotExist) {
			err = p.awaitDir(ctx)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// awaitDir waits until the directory of drivers, or the first missing one on the way there, may
// have been made.
func (p *plugin) awaitDir(ctx context.Context) error {
	instance, err := inotify.New()
	if err != nil {
		return err
	}
	defer instance.Close()
	defer context.AfterFunc(ctx, func() { instance.Close() })()
	parent, missing := filepath.Dir(p.drivers.Dir), p.drivers.Dir
	for {
		_, err := instance.Add(parent, events)
		if err == nil {
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || parent == "/" {
			return err
		}
		parent, missing = filepath.Dir(parent), parent
	}
	for {
		if _, err := os.Stat(missing); err == nil {
			return nil
		}
		all, err := instance.Read()
		if err != nil {
			return err
		}
		if slices.ContainsFunc(all, func(e inotify.Event) bool { return e.Name == "" || e.Name == filepath.Base(missing) }) {
			return nil
		}
	}
}

// watch watches the directory of drivers until it is gone or replaced, or ctx ends.
func (p *plugin) watch(ctx context.Context, wake func(source string)) error {
	instance, err := inotify.New()
	if err != nil {
		return err
	}
	defer instance.Close()
	defer context.AfterFunc(ctx, func() { instance.Close() })()
	w := &watcher{instance: instance, dir: p.drivers.Dir, wake: wake, names: make(map[int32]string)}
	if w.top, err = instance.Add(p.drivers.Dir, events); err != nil {
		return err
	}
	if err := w.scan(); err != nil {
		return err
	}
	for {
		all, err := instance.Read()
		if err != nil {
			return err
		}
		for _, e := range all {
			switch {
			case e.Lost():
				err = w.scan()
			case e.Watch == w.top && e.Mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_IGNORED) != 0:
				return nil
			default:
				w.take(e)
			}
			if err != nil {
				return err
			}
		}
	}
}

// watcher watches a directory of drivers, and those of the drivers.
type watcher struct {
	instance *inotify.Instance
	dir      string
	wake     func(source string)
	top      int32
	names    map[int32]string // of drivers, by the watches of their directories
}

// scan watches all drivers that are there, and wakes their volumes.
func (w *watcher) scan() error {
	all, err := os.ReadDir(w.dir)
	if err != nil {
		return err
	}
	for _, e := range all {
		w.add(e.Name())
	}
	return nil
}

// add watches the directory of a driver, and wakes the driver's volumes: its program may have
// been there before the watch.
func (w *watcher) add(dirName string) {
	name, ok := driver.NameOf(dirName)
	if !ok {
		return
	}
	if watch, err := w.instance.Add(filepath.Join(w.dir, dirName), events); err == nil {
		w.names[watch] = name
	}
	w.wake(name)
}

// take wakes the volumes that an event may help.
func (w *watcher) take(e inotify.Event) {
	if e.Watch == w.top {
		w.add(e.Name)
		return
	}
	name := w.names[e.Watch]
	switch {
	case e.Mask&unix.IN_IGNORED != 0:
		delete(w.names, e.Watch)
	case name != "" && (e.Name == "" || e.Name == driver.ProgramName(name)):
		w.wake(name)
	}
}
