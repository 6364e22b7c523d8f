package mount

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// openPath opens a path without opening what is there.
func openPath(dir int, path string, flags int) (int, error) {
	fd, err := eintr.Get(func() (int, error) { return unix.Openat(dir, path, unix.O_PATH|unix.O_CLOEXEC|flags, 0) })
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// fdPath is the path by which the kernel finds just what a descriptor is.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// place says what a descriptor or a name leads to. It never asks a server.
type place struct {
	mode   uint16
	mount  int    // the id of the mount it lies in, as in the mount table
	device uint64 // of the file system, as unix.Mkdev makes it
	root   bool   // it is that mount's root
	// untold: whether it is the root is not known, as before Linux 5.8.
	untold bool
}

func (p place) isLink() bool { return p.mode&unix.S_IFMT == unix.S_IFLNK }
func (p place) isDir() bool  { return p.mode&unix.S_IFMT == unix.S_IFDIR }

// look looks at what is at name in dir, which may be a link, or at dir itself.
func look(dir int, name string) (place, error) { return lookBy(unix.Statx, dir, name) }

func lookBy(call statx, dir int, name string) (place, error) {
	const flags = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	var st unix.Statx_t
	err := eintr.Do(func() error { return call(dir, name, flags, unix.STATX_TYPE|unix.STATX_MNT_ID, &st) })
	if err != nil {
		return place{}, &os.PathError{Op: "statx", Path: name, Err: err}
	}
	p := place{mode: st.Mode, mount: int(st.Mnt_id), device: unix.Mkdev(st.Dev_major, st.Dev_minor)}
	p.root = st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	p.untold = st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0
	if st.Mask&unix.STATX_MNT_ID == 0 { // before Linux 5.8
		p.mount, err = mountIDAt(dir, name)
	}
	return p, err
}

// mountIDAt asks /proc for the mount that a name leads to.
func mountIDAt(dir int, name string) (int, error) {
	if name == "" {
		return mountIDOf(dir)
	}
	fd, err := openPath(dir, name, unix.O_NOFOLLOW)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return mountIDOf(fd)
}

func mountIDOf(fd int) (int, error) {
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, errors.New("the kernel does not show the mount of a descriptor")
}
