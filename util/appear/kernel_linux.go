package appear

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/inotify"
)

// A directory's events are few where nothing is made in it. Where much is, only the names
// that lead to a path matter.
const events = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// kernel is one instance of inotify(7) for all paths.
type kernel struct {
	inotify *inotify.Instance
	changed func(path string)
	lost    func()
	ended   sync.WaitGroup

	mu      sync.Mutex
	removed uint64 // how many watches were
	entries map[string]dirEntry
	paths   map[int32]map[string]bool // by watch descriptor
}

// dirEntry is what is watched for a path: a name in a directory.
type dirEntry struct {
	wd   int32
	name string
}

// newKernel has changed called when a path may have appeared, and lost when any may have.
func newKernel(changed func(path string), lost func()) (*kernel, error) {
	instance, err := inotify.New()
	if err != nil {
		return nil, err
	}
	k := &kernel{inotify: instance, changed: changed, lost: lost, entries: make(map[string]dirEntry), paths: make(map[int32]map[string]bool)}
	k.ended.Go(k.read)
	return k, nil
}

func (k *kernel) close() {
	k.inotify.Close() // which ends the read
	k.ended.Wait()
}

// watch watches for a name in a directory, on behalf of a path, instead of what was watched
// for that before. It returns false where the directory cannot be watched.
func (k *kernel) watch(path, dir, name string) bool {
	for {
		before := k.removals()
		wd, err := k.inotify.Add(dir, events)
		if err != nil {
			return false
		}
		if k.note(path, dirEntry{wd, name}, before) {
			return true
		}
	}
}

func (k *kernel) removals() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.removed
}

// note records a watch for a path. It returns false if any watch was removed after before was
// read: it may be this one.
func (k *kernel) note(path string, w dirEntry, before uint64) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.removed != before {
		return false
	}
	if k.paths[w.wd] == nil {
		k.paths[w.wd] = make(map[string]bool)
	}
	k.paths[w.wd][path] = true
	if k.entries[path].wd != w.wd {
		k.drop(path)
	}
	k.entries[path] = w
	return true
}

// forget watches nothing for a path any more.
func (k *kernel) forget(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(path)
}

// drop ends what is watched for a path. k is locked.
func (k *kernel) drop(path string) {
	w, ok := k.entries[path]
	if !ok {
		return
	}
	delete(k.entries, path)
	delete(k.paths[w.wd], path)
	if len(k.paths[w.wd]) == 0 {
		delete(k.paths, w.wd)
		k.inotify.Remove(w.wd)
		k.removed++
	}
}

func (k *kernel) read() {
	for {
		events, err := k.inotify.Read()
		if err != nil {
			return
		}
		paths, all := k.concerned(events)
		if all {
			k.lost()
			continue
		}
		for path := range paths {
			k.changed(path)
		}
	}
}

// concerned returns the paths that events may be about.
func (k *kernel) concerned(events []inotify.Event) (paths map[string]bool, all bool) {
	paths = make(map[string]bool)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, e := range events {
		all = all || e.Lost()
		for path := range k.paths[e.Watch] {
			if e.Name == "" || e.Name == k.entries[path].name {
				paths[path] = true
			}
		}
	}
	return paths, all
}
