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

// detachLoops detaches the loop devices of files below a directory, and the loop devices of
// these devices, by which a node holds block volumes. Tests make them in the nodes, and leave
// them when they fail; the devices are the machine's.
func detachLoops(dir string) error {
	files := make(map[file]bool)
	err := filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			files[fileOf(info)] = true
		}
		return err
	})
	if err != nil {
		return err
	}
	return detachOf(files)
}

func fileOf(info fs.FileInfo) file {
	stat := info.Sys().(*syscall.Stat_t)
	return file{stat.Dev, stat.Ino}
}

// detachOf detaches the loop devices that have one of the files behind them. A device that is
// behind another one is detached after that.
func detachOf(files map[file]bool) error {
	attached, err := filepath.Glob("/sys/block/loop*/loop")
	if err != nil {
		return err
	}
	var devices []string
	nodes := make(map[file]bool)
	for _, loop := range attached {
		path := filepath.Join("/dev", filepath.Base(filepath.Dir(loop)))
		if is, err := isOf(files, path, nodes); err != nil {
			return err
		} else if is {
			devices = append(devices, path)
		}
	}
	if len(devices) == 0 {
		return nil
	}
	err = detachOf(nodes)
	for _, path := range devices {
		err = errors.Join(err, detach(path))
	}
	return err
}

// isOf says whether a loop device has one of the files behind it, and notes its own file then.
func isOf(files map[file]bool, path string, nodes map[file]bool) (bool, error) {
	device, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer device.Close()
	info, err := unix.IoctlLoopGetStatus64(int(device.Fd()))
	if errors.Is(err, unix.ENXIO) {
		return false, nil // detached by now
	}
	if err != nil {
		return false, os.NewSyscallError("LOOP_GET_STATUS64", err)
	}
	if !files[file{info.Device, info.Inode}] {
		return false, nil
	}
	node, err := device.Stat()
	if err == nil {
		nodes[fileOf(node)] = true
	}
	return true, err
}

func detach(path string) error {
	device, err := os.Open(path)
	if err != nil {
		return err
	}
	defer device.Close()
	err = unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0)
	if errors.Is(err, unix.ENXIO) {
		return nil // detached by now
	}
	return os.NewSyscallError("LOOP_CLR_FD", err)
}
