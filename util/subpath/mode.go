package subpath

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

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

// setMode corrects the mode of a directory that was just made: mkdir(2) does not
// set the set-group-id bit if the directory above lacks it, and a default ACL or
// umask takes bits away. It changes only a directory that is ours and empty, so
// that no user can have one that hides something opened up by renaming it.
func (m *maker) setMode(fd int) error {
	st, err := stat(fd)
	if err != nil || st.Mode&m.bits == m.mode&m.bits {
		return err
	}
	dir, err := eintr.Get(func() (int, error) {
		return unix.Openat(fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil // it cannot be seen whether it is empty
	}
	defer unix.Close(dir)
	if int(st.Uid) != os.Geteuid() || !isEmpty(dir) {
		return nil
	}
	mode := st.Mode&modeBits&^m.bits | m.mode&m.bits
	err = eintr.Do(func() error { return unix.Fchmod(dir, mode) })
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) { // a file system without modes
		return nil
	}
	return err
}

func isEmpty(dir int) bool {
	buffer := make([]byte, 4096)
	for {
		n, err := eintr.Get(func() (int, error) { return unix.ReadDirent(dir, buffer) })
		if err != nil {
			return false
		}
		if n == 0 {
			return true
		}
		if _, count, _ := unix.ParseDirent(buffer[:n], 1, nil); count > 0 {
			return false
		}
	}
}
