package table

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
)

// bootIDPath holds a UUID that is new with each boot (random(4)).
const bootIDPath = "/proc/sys/kernel/random/boot_id"

// Superblock is a file system as opposed to its mounts. It lives on after a lazy
// unmount while a process uses it, and in other mount namespaces; a mount table
// does not show either. The zero value knows nothing. It is a value, and safe for
// concurrent use.
type Superblock struct {
	alive func() (alive, known bool)
	key   func() string
}

// NewSuperblock returns a file system for mounters whose mounts are not the kernel's,
// with what its methods Key and Alive return.
func NewSuperblock(key func() string, alive func() (alive, known bool)) Superblock {
	return Superblock{alive: alive, key: key}
}

// SuperblockOf returns the file system of an entry of m's table. The result later
// reports whether that file system is gone. SuperblockOf must be called while the
// entry is mounted. It never touches the file system.
//
// On the host it uses the file system's directory below /sys/class/bdi, which NFS
// and FUSE have. Nothing is known of other types, of file systems on block
// devices, whose directory is the device's, and without sysfs.
func SuperblockOf(m mount.Interface, e mount.Entry) Superblock {
	if own, ok := ownSuperblocks(m); ok {
		return own.SuperblockOf(e)
	}
	return hostSuperblocks().SuperblockOf(e)
}

// SuperblockByKey returns the file system with this [Superblock.Key], which may
// come from another process. For an unknown key, nothing is known of the file
// system.
func SuperblockByKey(m mount.Interface, key string) Superblock {
	if own, ok := ownSuperblocks(m); ok {
		return own.SuperblockByKey(key)
	}
	return hostSuperblocks().SuperblockByKey(key)
}

// superblocker is implemented by mounters whose mounts are not the kernel's.
type superblocker interface {
	SuperblockOf(mount.Entry) Superblock
	SuperblockByKey(string) Superblock
}

// ownSuperblocks looks through what mounters are wrapped in.
func ownSuperblocks(m mount.Interface) (superblocker, bool) {
	for {
		if own, ok := m.(superblocker); ok {
			return own, true
		}
		outer, ok := m.(interface{ Unwrap() mount.Interface })
		if !ok {
			return nil, false
		}
		m = outer.Unwrap()
	}
}

// Alive reports whether the file system still exists, if that is known. It
// also does while it is mounted elsewhere: mounts of one NFS export share one.
func (s Superblock) Alive() (alive, known bool) {
	if s.alive == nil {
		return false, false
	}
	return s.alive()
}

// Key names the file system for [SuperblockByKey], in a form that can be written
// down. No file system outlives the machine's boot: after the next one each is
// known to be gone, even one of which nothing else is known. It is empty for the
// zero value.
func (s Superblock) Key() string {
	if s.key == nil {
		return ""
	}
	return s.key()
}

// kernelSuperblocks are the kernel's file systems.
type kernelSuperblocks struct{ bdi, bootID string }

func hostSuperblocks() kernelSuperblocks { return kernelSuperblocks{mounttable.BDIDir, bootIDPath} }

// kernelKey begins the keys of the kernel's file systems: "kernel BOOT", and
// " DEVICE INODE" where these are known.
const kernelKey = "kernel"

func (k kernelSuperblocks) SuperblockOf(e mount.Entry) Superblock {
	number := mounttable.DeviceNumber(e.Device)
	inode, err := mounttable.InodeOf(filepath.Join(k.bdi, number))
	if err != nil || mounttable.OnBlockDevice(e) {
		return Superblock{key: func() string { return fmt.Sprintf("%s %s", kernelKey, k.boot()) }}
	}
	return Superblock{
		alive: func() (alive, known bool) { return k.alive(number, inode) },
		key:   func() string { return fmt.Sprintf("%s %s %s %d", kernelKey, k.boot(), number, inode) },
	}
}

func (k kernelSuperblocks) SuperblockByKey(key string) Superblock {
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

// alive reports whether a file system still has its directory. The kernel soon
// reuses the numbers of devices, but not those of inodes.
func (k kernelSuperblocks) alive(number string, inode uint64) (alive, known bool) {
	is, err := mounttable.InodeOf(filepath.Join(k.bdi, number))
	switch {
	case err == nil:
		return is == inode, true
	case !errors.Is(err, unix.ENOENT):
		return false, false
	}
	_, err = mounttable.InodeOf(k.bdi) // it may be sysfs that is gone
	return false, err == nil
}
