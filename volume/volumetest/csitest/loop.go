package csitest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/retry"
)

// loopsBelow returns the loop devices whose image files are below dir, or dir itself.
func loopsBelow(dir string) (devices []string, err error) {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		backing, err := os.ReadFile(file)
		if err != nil {
			continue // freed meanwhile
		}
		if _, below := pathin.Cut(real, strings.TrimSpace(string(backing))); below {
			devices = append(devices, "/dev/"+strings.Split(file, "/")[3])
		}
	}
	return devices, err
}

// attach returns the loop device of an image, which it makes if there is none.
func attach(image string) (string, error) {
	devices, err := loopsBelow(image)
	if err != nil || len(devices) > 0 {
		return strings.Join(devices[:min(1, len(devices))], ""), err
	}
	file, err := os.OpenFile(image, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer control.Close()
	var path string
	err = retry.Patiently(unix.EBUSY, func() error { // others may be quicker at a free device
		path, err = configure(control, file)
		return err
	})
	return path, err
}

func configure(control, file *os.File) (string, error) {
	number, err := eintr.Get(func() (int, error) { return unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE) })
	if err != nil {
		return "", err
	}
	path := fmt.Sprintf("/dev/loop%d", number)
	device, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer device.Close()
	config := unix.LoopConfig{Fd: uint32(file.Fd())}
	return path, eintr.Do(func() error { return unix.IoctlLoopConfigure(int(device.Fd()), &config) })
}

// detachBelow frees the loop devices of all images below dir. A device in use is freed
// at the end of its use.
func detachBelow(dir string) error {
	devices, err := loopsBelow(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range devices {
		errs = append(errs, onLoop(path, unix.LOOP_CLR_FD))
	}
	return errors.Join(errs...)
}

// resize makes a device as large as its image.
func resize(device string) error { return onLoop(device, unix.LOOP_SET_CAPACITY) }

func onLoop(path string, request uint) error {
	device, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer device.Close()
	err = eintr.Do(func() error { return unix.IoctlSetInt(int(device.Fd()), request, 0) })
	if errors.Is(err, unix.ENXIO) { // it is free already
		return nil
	}
	return err
}
