// Package barewalk makes the system calls of a walk through a tree and nothing else, for
// figures of how near a walk is to what the kernel allows.
//
// It is for figures alone: it checks nothing, its calls are raw ones, which keep a
// processor while they wait, and nobody else may change the tree.
package barewalk

import (
	"encoding/binary"
	"io/fs"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Caller makes system calls, and keeps the last of their errors.
type Caller struct{ failed unix.Errno }

// Do makes a system call and returns its result. Unused arguments are 0.
func (c *Caller) Do(number, a1, a2, a3, a4, a5 uintptr) uintptr {
	got, _, errno := unix.RawSyscall6(number, a1, a2, a3, a4, a5, 0)
	if errno != 0 {
		c.failed = errno
	}
	return got
}

// Directories lists those of a tree, for Each.
func Directories(tb testing.TB, root string) (dirs []string) {
	tb.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return dirs
}

// Each calls f for each file in the directories that is none itself, with its directory's
// descriptor and its name as a C string. There are as many threads as processors, each of
// which takes one directory after the other. An error of a call ends the test.
func Each(tb testing.TB, dirs []string, f func(c *Caller, dirfd uintptr, name unsafe.Pointer)) {
	tb.Helper()
	var next, failed atomic.Int64
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			c, entries := new(Caller), make([]byte, 32<<10)
			for n := next.Add(1); int(n) <= len(dirs) && c.failed == 0; n = next.Add(1) {
				c.read(dirs[n-1], entries, f)
			}
			failed.CompareAndSwap(0, int64(c.failed))
		})
	}
	all.Wait()
	if errno := unix.Errno(failed.Load()); errno != 0 {
		tb.Fatal(errno)
	}
}

// read is Each for one directory.
func (c *Caller) read(dir string, entries []byte, f func(c *Caller, dirfd uintptr, name unsafe.Pointer)) {
	path := append([]byte(dir), 0)
	fd := c.Do(unix.SYS_OPENAT, 0, uintptr(unsafe.Pointer(&path[0])), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0, 0)
	if c.failed != 0 {
		return
	}
	defer unix.Close(int(fd))
	for {
		got := c.Do(unix.SYS_GETDENTS64, fd, uintptr(unsafe.Pointer(&entries[0])), uintptr(len(entries)), 0, 0)
		if got == 0 || c.failed != 0 {
			return
		}
		for rest := entries[:got]; len(rest) > 0; {
			const length, kind, name = 16, 18, 19 // the places in a struct linux_dirent64
			if rest[kind] != unix.DT_DIR {
				f(c, fd, unsafe.Pointer(&rest[name]))
			}
			rest = rest[binary.NativeEndian.Uint16(rest[length:]):]
		}
	}
}
