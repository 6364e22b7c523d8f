package sandbox

import (
	"context"
	"errors"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/retry"
)

// openPath opens a path without opening the file.
func openPath(dir int, path string, flags int) (int, error) {
	return eintr.Get(func() (int, error) { return unix.Openat(dir, path, unix.O_PATH|unix.O_CLOEXEC|flags, 0) })
}

// openIn opens a path as if dir were the root: links and ".." stay inside it. It
// retries while renames disturb it; a caller that has waited too long kills this
// process.
func openIn(dir int, path string, resolve uint64) (int, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | resolve}
	fd := -1
	err := retry.Do(context.Background(), unix.EAGAIN, func() (err error) {
		fd, err = eintr.Get(func() (int, error) { return unix.Openat2(dir, path, &how) })
		return err
	})
	return fd, err
}

// look asks about an open file; no server is asked.
func look(fd int) (unix.Statx_t, error) {
	const flags = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID | unix.STATX_INO | unix.STATX_MNT_ID
	var st unix.Statx_t
	err := eintr.Do(func() error { return unix.Statx(fd, "", flags, mask, &st) })
	return st, err
}

func isDirectory(fd int) (bool, error) {
	st, err := look(fd)
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, err
}

// realPath is where an open file is, seen from this process' root.
func realPath(fd int) (string, error) {
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if errors.Is(err, unix.ENOENT) { // an open file has one, wherever it is
		e := as(ErrConfig, "look where the mount is", "", err)
		e.Advice = "a mount that covers /proc must show the machine's: mount the volume elsewhere"
		return "", e
	}
	return real, err
}

// readLink reads an open link. ENOENT says that it is none.
func readLink(link int) (string, error) {
	target := make([]byte, unix.PathMax)
	n, err := eintr.Get(func() (int, error) { return unix.Readlinkat(link, "", target) })
	return string(target[:max(n, 0)]), err
}
