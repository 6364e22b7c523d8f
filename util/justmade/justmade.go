// Package justmade tells whether an open directory is the one that this process
// has just made. A directory is made by name and opened by name: a user who may
// write in the one above, such as on a server's share, can put another directory
// in its place in between.
//
// Like every package below util, it carries no promise of compatibility.
package justmade

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// ErrOther says that a directory is not the one that was made.
var ErrOther = errors.New("another directory is in place of the one that was made")

// Check returns nil if the directory dir, just made in parent with this mode, is
// as it was made: owned like this process's new files in parent, without
// permissions beyond mode, and empty. A user who swaps one such directory for
// another gains nothing. Both descriptors may have been opened with O_PATH. The
// error is [ErrOther] with a reason, or a system call's.
func Check(parent, dir int, mode uint32) error {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstat(dir, &st) }); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if beyond := st.Mode & 0o1777 &^ mode; beyond != 0 {
		return fmt.Errorf("%w: it has mode %04o and was made with %04o", ErrOther, st.Mode&0o7777, mode)
	}
	ours, err := Owns(parent, st.Uid)
	if err != nil {
		return err
	}
	if !ours {
		return fmt.Errorf("%w: it belongs to user %d", ErrOther, st.Uid)
	}
	return checkEmpty(dir)
}

// Owns reports whether what this process makes in parent belongs to this user.
func Owns(parent int, uid uint32) (bool, error) {
	if int64(uid) == int64(unix.Geteuid()) {
		return true, nil
	}
	user, err := UserIn(parent)
	return err == nil && user == uid, err
}

// UserIn returns the owner of this process's new files in parent. A server may
// map root to another user, which only shows in a new file: it makes one and
// removes it. Another user who can write in parent cannot put a file in its
// place, since open(2) makes and opens it in one step.
func UserIn(parent int) (uint32, error) {
	name := ".podvol-probe-" + rand.Text()
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := eintr.Get(func() (int, error) { return unix.Openat(parent, name, flags, 0o600) })
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	err = eintr.Do(func() error { return unix.Fstat(fd, &st) })
	unix.Close(fd) // first: NFS only renames an open file
	removed := eintr.Do(func() error { return unix.Unlinkat(parent, name, 0) })
	if errors.Is(removed, unix.ENOENT) { // by another process
		removed = nil
	}
	if err := errors.Join(err, removed); err != nil {
		return 0, &os.PathError{Op: "unlink", Path: name, Err: err}
	}
	return st.Uid, nil
}

func checkEmpty(dir int) error {
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	defer unix.Close(fd)
	buffer := make([]byte, 4096)
	for {
		n, err := eintr.Get(func() (int, error) { return unix.ReadDirent(fd, buffer) })
		if err != nil {
			return os.NewSyscallError("getdents64", err)
		}
		if n == 0 {
			return nil
		}
		if _, _, names := unix.ParseDirent(buffer[:n], -1, nil); len(names) > 0 {
			return fmt.Errorf("%w: it has entries", ErrOther)
		}
	}
}
