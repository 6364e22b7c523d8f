package mount

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

const (
	// bdiDir has a directory for the write-back of each file system that has one
	// of its own, named by device number (Linux, Documentation/ABI/testing/
	// sysfs-class-bdi).
	bdiDir = "/sys/class/bdi"
	// bootIDPath holds a UUID that is new with each boot (random(4)).
	bootIDPath = "/proc/sys/kernel/random/boot_id"
)

// Superblock is a file system as opposed to its mounts. It lives on after a lazy
// unmount while a process uses it, and in other mount namespaces; a mount table
// does not show either. The zero value knows nothing. It is a value, and safe for
// concurrent use.
type Superblock struct {
	alive func() (alive, known bool)
	key   func() string
}

// SuperblockOf returns the file system of an entry of m's table. The result later
// reports whether that file system is gone. SuperblockOf must be called while the
// entry is mounted. It never touches the file system.
//
// On the host it uses the file system's directory below /sys/class/bdi, which NFS
// and FUSE have. Nothing is known of other types, of file systems on block
// devices, whose directory is that of the device, and without sysfs.
func SuperblockOf(m Interface, e Entry) Superblock {
	if own, ok := m.(superblocker); ok {
		return own.superblock(e)
	}
	return hostSuperblocks().superblock(e)
}

// SuperblockByKey returns the file system with this [Superblock.Key], which may
// come from another process. For an unknown key, nothing is known of the file
// system.
func SuperblockByKey(m Interface, key string) Superblock {
	if own, ok := m.(superblocker); ok {
		return own.superblockByKey(key)
	}
	return hostSuperblocks().superblockByKey(key)
}

// superblocker is implemented by mounters whose mounts are not the kernel's.
type superblocker interface {
	superblock(Entry) Superblock
	superblockByKey(string) Superblock
}

// Alive reports whether the file system still exists, if that is known. It
// also does while it is mounted elsewhere: mounts of one NFS export share one.
func (s Superblock) Alive() (alive, known bool) {
	if s.alive == nil {
		return false, false
	}
	return s.alive()
}

// Key names the file system for [SuperblockByKey], in a form that can be
// written down: no file system outlives the machine's boot, so that after the
// next one each is known to be gone, even one of which nothing else is known.
// It is empty for the zero value.
func (s Superblock) Key() string {
	if s.key == nil {
		return ""
	}
	return s.key()
}

// kernelSuperblocks are the kernel's file systems.
type kernelSuperblocks struct{ bdi, bootID string }

func hostSuperblocks() kernelSuperblocks { return kernelSuperblocks{bdiDir, bootIDPath} }

// kernelKey begins the keys of the kernel's file systems: "kernel BOOT", and
// " DEVICE INODE" where these are known.
const kernelKey = "kernel"

func (k kernelSuperblocks) superblock(e Entry) Superblock {
	number := deviceNumber(e.Device)
	inode, err := inodeOf(filepath.Join(k.bdi, number))
	if err != nil || onBlockDevice(e) {
		return Superblock{key: func() string { return fmt.Sprintf("%s %s", kernelKey, k.boot()) }}
	}
	return Superblock{
		alive: func() (alive, known bool) { return k.alive(number, inode) },
		key:   func() string { return fmt.Sprintf("%s %s %s %d", kernelKey, k.boot(), number, inode) },
	}
}

// deviceNumber is how sysfs calls a device.
func deviceNumber(device uint64) string {
	return strconv.FormatUint(uint64(unix.Major(device)), 10) + ":" + strconv.FormatUint(uint64(unix.Minor(device)), 10)
}

func (k kernelSuperblocks) superblockByKey(key string) Superblock {
	same := func() string { return key }
	parts := strings.Split(key, " ")
	if len(parts) < 2 || parts[0] != kernelKey {
		return Superblock{key: same}
	}
	if parts[1] != k.boot() {
		return Superblock{key: same, alive: func() (alive, known bool) { return false, true }}
	}
	if len(parts) != 4 || strings.Contains(parts[2], "/") {
		return Superblock{key: same}
	}
	inode, err := strconv.ParseUint(parts[3], 10, 64)
	if err != nil {
		return Superblock{key: same}
	}
	return Superblock{key: same, alive: func() (alive, known bool) { return k.alive(parts[2], inode) }}
}

// boot names the machine's boot; "-" where it has no name.
func (k kernelSuperblocks) boot() string {
	text, err := os.ReadFile(k.bootID)
	id := string(bytes.TrimSpace(text))
	if err != nil || id == "" || strings.Contains(id, " ") {
		return "-"
	}
	return id
}

// alive reports whether a file system still has its directory. The kernel gives
// numbers of devices to new file systems at once, but not those of inodes.
func (k kernelSuperblocks) alive(number string, inode uint64) (alive, known bool) {
	is, err := inodeOf(filepath.Join(k.bdi, number))
	switch {
	case err == nil:
		return is == inode, true
	case !errors.Is(err, unix.ENOENT):
		return false, false
	}
	_, err = inodeOf(k.bdi) // it may be sysfs that is gone
	return false, err == nil
}

func inodeOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Stat(path, &st) }); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}
