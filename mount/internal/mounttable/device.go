package mounttable

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/eintr"
)

// BDIDir has a directory for the write-back of each file system that has one of its own,
// named by device number (Linux, Documentation/ABI/testing/sysfs-class-bdi).
const BDIDir = "/sys/class/bdi"

// DeviceNumber is how sysfs calls a device.
func DeviceNumber(device uint64) string {
	return strconv.FormatUint(uint64(unix.Major(device)), 10) + ":" + strconv.FormatUint(uint64(unix.Minor(device)), 10)
}

// InodeOf returns the number of the inode of a path.
func InodeOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Stat(path, &st) }); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}

// OnBlockDevice reports whether the file system's data is on a block device.
func OnBlockDevice(e mount.Entry) bool {
	if unix.Major(e.Device) != 0 || strings.HasPrefix(e.Source, "/dev/") {
		return true
	}
	return slices.Contains([]string{"btrfs", "bcachefs", "zfs", "ubifs"}, e.FSType)
}

// HasLeftSysfs reports that no file system with a directory of its own below
// /sys/class/bdi has this device number now.
func HasLeftSysfs(device uint64) bool {
	_, err := InodeOf(filepath.Join(BDIDir, DeviceNumber(device)))
	if !errors.Is(err, unix.ENOENT) {
		return false
	}
	_, err = InodeOf(BDIDir) // it may be sysfs that is gone
	return err == nil
}
