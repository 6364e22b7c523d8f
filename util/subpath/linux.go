//go:build linux

package subpath

import (
	"errors"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// kernel is what the kernel offers; tests take away from it.
type kernel struct {
	// openat2 is nil for the walk alone.
	openat2 func(dir int, path string, how *unix.OpenHow) (int, error)
	// opener is the walk's.
	opener opener
	// unshare gives the thread a umask of its own.
	unshare func(flags int) error
}

func system() kernel {
	return kernel{openat2: unix.Openat2, opener: pathOnly{}, unshare: unix.Unshare}
}

// withoutUmask calls f on a thread whose umask is 0. So what it makes has the
// right mode from the beginning: a chmod afterwards could hit what a container
// has put in its place, and a crash before it would leave the wrong mode.
// Where a thread may not have a umask of its own (a seccomp filter that denies
// unshare(2)), the process' umask applies, and setMode sees to the rest.
func (k kernel) withoutUmask(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with this goroutine
		if k.unshare(unix.CLONE_FS) == nil {
			unix.Umask(0)
		} else {
			runtime.UnlockOSThread()
		}
		f()
	}()
	<-done
}

// pathOnly opens with O_PATH, links as well.
type pathOnly struct{}

func (pathOnly) open(dir int, name string) (entry, error) {
	fd, err := openPath(dir, name, unix.O_NOFOLLOW|unix.O_DIRECTORY) // mounts an automount
	if err == nil {
		return entry{fd: fd, dir: true}, nil
	}
	if errors.Is(err, unix.ENOTDIR) {
		fd, err = openPath(dir, name, unix.O_NOFOLLOW)
	}
	if err != nil {
		return entry{}, err
	}
	st, err := stat(fd)
	if err != nil {
		unix.Close(fd)
		return entry{}, err
	}
	return entry{fd: fd, dir: isDir(st), link: st.Mode&unix.S_IFMT == unix.S_IFLNK}, nil
}

// noSymFollow is what statfs(2) says of a mount with MS_NOSYMFOLLOW (Linux 5.10,
// include/linux/statfs.h).
const noSymFollow = 0x2000

func (pathOnly) target(at place, _ int, _ string, link entry) (target string, magic bool, err error) {
	if target, err = readLink(link.fd, ""); err != nil {
		return "", false, at.failed("readlinkat", err)
	}
	var system unix.Statfs_t
	if err := eintr.Do(func() error { return unix.Fstatfs(link.fd, &system) }); err != nil {
		return "", false, at.failed("fstatfs", err)
	}
	if system.Flags&noSymFollow != 0 {
		return "", false, at.failed("openat", unix.ELOOP)
	}
	return target, target != "" && system.Type == unix.PROC_SUPER_MAGIC && isMagic(target), nil
}

// isMagic tells the links of /proc that are no paths, like "pipe:[4711]" and
// "(unreachable)/file". Taken for a path, none of them would lead out either.
func isMagic(target string) bool {
	return target[0] == '(' || strings.Contains(target, ":")
}

func openPath(dir int, name string, flags int) (int, error) {
	return eintr.Get(func() (int, error) { return unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC|flags, 0) })
}
