//go:build unix

package subpath

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// setMode corrects the mode of a directory that was just made: mkdir(2) does not
// set the set-group-id bit if the directory above lacks it, and a default ACL or
// umask takes bits away. It changes only a directory that is ours and empty, so
// that no user can have one that hides something opened up by renaming it.
func (m *maker) setMode(fd int) error {
	st, err := stat(fd)
	is := uint32(st.Mode)
	if err != nil || is&m.bits == m.mode&m.bits {
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
	mode := is&modeBits&^m.bits | m.mode&m.bits
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
