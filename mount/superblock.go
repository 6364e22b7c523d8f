package mount

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// bdiDir has a directory for the write-back of each file system that has one
// of its own, named by device number (Linux, Documentation/ABI/testing/
// sysfs-class-bdi).
const bdiDir = "/sys/class/bdi"

// Superblock is a file system as opposed to its mounts: it lives on after a
// lazy unmount, while anybody uses it, and in other mount namespaces, of which
// a mount table shows nothing. The zero value knows nothing. It is a value, and
// safe for concurrent use.
type Superblock struct {
	alive func() (alive, known bool)
}

// SuperblockOf remembers the file system of an entry of m's table, so that it
// can be told later whether it is gone. It must be called while the entry is
// mounted, and never touches the file system.
//
// On the host it goes by the file system's directory below /sys/class/bdi,
// which NFS and FUSE have. Nothing is known of other types, of file systems on
// block devices, whose directory is that of the device, and without sysfs.
func SuperblockOf(m Interface, e Entry) Superblock {
	if own, ok := m.(superblocker); ok {
		return own.superblock(e)
	}
	return kernelSuperblock(bdiDir, e)
}

// superblocker is implemented by mounters whose mounts are not the kernel's.
type superblocker interface{ superblock(Entry) Superblock }

// Alive reports whether the file system still exists, if that is known. It
// also does while it is mounted elsewhere: mounts of one NFS export share one.
func (s Superblock) Alive() (alive, known bool) {
	if s.alive == nil {
		return false, false
	}
	return s.alive()
}

func kernelSuperblock(dir string, e Entry) Superblock {
	if onBlockDevice(e) {
		return Superblock{}
	}
	number := strconv.FormatUint(uint64(unix.Major(e.Device)), 10) + ":" + strconv.FormatUint(uint64(unix.Minor(e.Device)), 10)
	own := filepath.Join(dir, number)
	was, err := inodeOf(own)
	if err != nil {
		return Superblock{}
	}
	return Superblock{func() (alive, known bool) {
		// The kernel gives numbers of devices to new file systems at once,
		// but not those of inodes.
		is, err := inodeOf(own)
		switch {
		case err == nil:
			return is == was, true
		case !errors.Is(err, unix.ENOENT):
			return false, false
		}
		_, err = inodeOf(dir) // it may be sysfs that is gone
		return false, err == nil
	}}
}

func inodeOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Stat(path, &st) }); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}
