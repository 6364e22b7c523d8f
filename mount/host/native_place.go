package host

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/eintr"
)

// openPath opens a path without opening the file.
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

func (p place) isDir() bool { return p.mode&unix.S_IFMT == unix.S_IFDIR }

// look looks at name in dir, which may be a link, or at dir itself.
func look(dir int, name string) (place, error) {
	var st unix.Statx_t
	err := eintr.Do(func() error { return unix.Statx(dir, name, lookFlags, lookMask, &st) })
	return placeOf(dir, name, &st, err)
}

func lookBy(call mounttable.Statx, dir int, name string) (place, error) {
	var st unix.Statx_t
	err := eintr.Do(func() error { return call(dir, name, lookFlags, lookMask, &st) })
	return placeOf(dir, name, &st, err)
}

const (
	lookFlags = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	lookMask  = unix.STATX_TYPE | unix.STATX_MNT_ID
)

// placeOf reads what statx(2) said.
func placeOf(dir int, name string, st *unix.Statx_t, err error) (place, error) {
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
		return mounttable.MountIDOf(dir)
	}
	fd, err := openPath(dir, name, unix.O_NOFOLLOW)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return mounttable.MountIDOf(fd)
}

// sourceOf is the source as the mount table shall show it: the type where
// there is none, and of a device the name behind its links, as with mount(8).
func sourceOf(r mount.Request) string {
	if r.Source == "" {
		return r.FSType
	}
	if !strings.HasPrefix(r.Source, "/dev/") {
		return r.Source
	}
	real, err := filepath.EvalSymlinks(r.Source)
	if err != nil {
		return r.Source // the kernel says why it fails
	}
	return mapperName(real)
}

// mapperName is the name of a device-mapper device that people know, as mount(8)
// shows it, for its number; other devices are left alone.
func mapperName(device string) string {
	number, ok := strings.CutPrefix(device, "/dev/dm-")
	if !ok {
		return device
	}
	name, err := os.ReadFile("/sys/block/dm-" + number + "/dm/name")
	if err != nil {
		return device
	}
	return "/dev/mapper/" + strings.TrimSpace(string(name))
}
