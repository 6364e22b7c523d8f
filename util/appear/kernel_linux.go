package appear

import (
	"encoding/binary"
	"os"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// A directory's events are few where nothing is made in it. Where much is, only the names
// that lead to a path matter.
const events = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// kernel is one instance of inotify(7) for all paths.
type kernel struct {
	file    *os.File
	changed func(path string)
	lost    func()
	ended   sync.WaitGroup

	mu     sync.Mutex
	adding int // calls of watch that may have added what is not noted yet
	ways   map[string]way
	paths  map[int32]map[string]bool // by watch descriptor
}

// way is what is watched for a path: a name in a directory.
type way struct {
	wd   int32
	name string
}

// newKernel has changed called when a path may have appeared, and lost when any may have.
func newKernel(changed func(path string), lost func()) (*kernel, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("inotify_init1", err)
	}
	k := &kernel{file: os.NewFile(uintptr(fd), "inotify"), changed: changed, lost: lost, ways: make(map[string]way), paths: make(map[int32]map[string]bool)}
	k.ended.Go(k.read)
	return k, nil
}

func (k *kernel) close() {
	k.file.Close() // which ends the read
	k.ended.Wait()
}

// watch watches for a name in a directory, on behalf of a path, instead of what was watched
// for that before. It returns false where the directory cannot be watched.
func (k *kernel) watch(path, dir, name string) bool {
	fd, err := k.dup()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	k.add(1)
	defer k.add(-1)
	wd, err := eintr.Get(func() (int, error) { return unix.InotifyAddWatch(fd, dir, events) })
	if err != nil {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(path)
	k.ways[path] = way{int32(wd), name}
	if k.paths[int32(wd)] == nil {
		k.paths[int32(wd)] = make(map[string]bool)
	}
	k.paths[int32(wd)][path] = true
	return true
}

// dup returns a descriptor of the caller's. A call with the file's own would keep close
// waiting for as long as a server does not answer.
func (k *kernel) dup() (int, error) {
	conn, err := k.file.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	if closed := conn.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); closed != nil {
		return -1, closed
	}
	return fd, err
}

func (k *kernel) add(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.adding += n
	if k.adding > 0 {
		return
	}
	for wd, paths := range k.paths {
		if len(paths) == 0 {
			k.remove(wd)
		}
	}
}

// forget watches nothing for a path any more.
func (k *kernel) forget(path string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.drop(path)
}

// drop leaves a watch alone that a call may just have got for another path. k is locked.
func (k *kernel) drop(path string) {
	w, ok := k.ways[path]
	if !ok {
		return
	}
	delete(k.ways, path)
	delete(k.paths[w.wd], path)
	if len(k.paths[w.wd]) == 0 && k.adding == 0 {
		k.remove(w.wd)
	}
}

func (k *kernel) remove(wd int32) {
	delete(k.paths, wd)
	if conn, err := k.file.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { _, _ = unix.InotifyRmWatch(int(fd), uint32(wd)) }) // it may have gone with its directory
	}
}

func (k *kernel) read() {
	buffer := make([]byte, 16<<10)
	for {
		n, err := k.file.Read(buffer)
		if err != nil {
			return
		}
		paths, all := k.concerned(buffer[:n])
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
func (k *kernel) concerned(events []byte) (paths map[string]bool, all bool) {
	paths = make(map[string]bool)
	k.mu.Lock()
	defer k.mu.Unlock()
	for len(events) >= unix.SizeofInotifyEvent {
		wd := int32(binary.NativeEndian.Uint32(events))
		mask := binary.NativeEndian.Uint32(events[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		name := strings.TrimRight(string(events[unix.SizeofInotifyEvent:end]), "\x00")
		events = events[end:]
		all = all || mask&unix.IN_Q_OVERFLOW != 0
		for path := range k.paths[wd] {
			if name == "" || name == k.ways[path].name {
				paths[path] = true
			}
		}
	}
	return paths, all
}
