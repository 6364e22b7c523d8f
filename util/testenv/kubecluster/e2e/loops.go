package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// file says which file it is, whatever it is called in a namespace of mounts.
type file struct{ device, inode uint64 }

// detachLoops detaches the loop devices of files below a directory. Tests make them in
// the nodes, and leave them when they fail; the devices are the machine's.
func detachLoops(dir string) error {
	files := make(map[file]bool)
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		files[file{stat.Dev, stat.Ino}] = true
		return nil
	})
	if err != nil {
		return err
	}
	attached, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return err
	}
	for _, loop := range attached {
		err = errors.Join(err, detachOf(files, filepath.Join("/dev", filepath.Base(filepath.Dir(loop)))))
	}
	return err
}

// detachOf detaches a loop device if one of the files is behind it.
func detachOf(files map[file]bool, path string) error {
	device, err := os.Open(path)
	if err != nil {
		return err
	}
	defer device.Close()
	info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return nil // detached by now
	}
	if err != nil {
		return os.NewSyscallError("LOOP_GET_STATUS64", err)
	}
	if !files[file{info.Device, info.Inode}] {
		return nil
	}
	return os.NewSyscallError("LOOP_CLR_FD", unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0))
}
