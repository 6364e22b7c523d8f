// Package loophold keeps block devices open beyond the life of a process: a loop
// device (loop(4)) whose backing file is the device's node. While it exists, the
// kernel cannot give the device's number to another device, so that no node can
// come to mean another device silently. The kubelet does the same, and finds the
// loop devices of this package, as this one finds its.
//
// Like every package below util, it carries no promise of compatibility.
package loophold

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/retry"
)

const (
	controlPath = "/dev/loop-control"
	sysBlock    = "/sys/block"
)

// ErrNoLoop says that the kernel has no loop devices.
var ErrNoLoop = errors.New("this node has no loop devices; load the kernel's loop module (modprobe loop), and give the agent /dev/loop-control")

// Hold makes a loop device that keeps the device at path open, and returns its
// path; where there is one already, that one. The device is read-only and never
// read. It stays when the process ends, until [Release]. It needs CAP_SYS_ADMIN;
// opening path may block as long as the device does. Two calls for one path must
// not overlap. The error matches [ErrNoLoop] where there is no loop-control.
func Hold(path string) (device string, err error) {
	held, err := Holding(path)
	if err != nil {
		return "", err
	}
	if len(held) > 0 {
		return held[0], nil
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer file.Close()
	control, err := os.OpenFile(controlPath, os.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return "", fmt.Errorf("%w: %w", ErrNoLoop, err)
	}
	if err != nil {
		return "", err
	}
	defer control.Close()
	tag, err := tagOf(path)
	if err != nil {
		return "", err
	}
	// Others may be quicker at a free loop device.
	err = retry.Patiently(unix.EBUSY, func() error {
		device, err = take(control, file, tag, configure)
		return err
	})
	if errors.Is(err, unix.EBUSY) {
		return "", fmt.Errorf("every free loop device was taken by others; try again: %w", err)
	}
	return device, err
}

// tag is the name that a loop device keeps of what it holds (lo_file_name),
// which nothing can change but its owner. The kernel's own name for it,
// backing_file, is only "/" once the bind mount has been detached.
type tag [unix.LO_NAME_SIZE]byte

func tagOf(path string) (t tag, err error) {
	real, err := realPath(path)
	sum := sha256.Sum256([]byte(real))
	copy(t[:], "podvol:"+hex.EncodeToString(sum[:24]))
	return t, err
}

// realPath resolves the links that lead to the parent of path.
func realPath(path string) (string, error) {
	parent, err := filepath.EvalSymlinks(filepath.Dir(path))
	return filepath.Join(parent, filepath.Base(path)), err
}

// take makes a free loop device one of file. EBUSY: another process was quicker.
func take(control, file *os.File, name tag, configure func(loop, file int, name tag) error) (string, error) {
	number, err := eintr.Get(func() (int, error) { return unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE) })
	if err != nil {
		return "", os.NewSyscallError("LOOP_CTL_GET_FREE", err)
	}
	path := fmt.Sprintf("/dev/loop%d", number)
	loop, err := os.OpenFile(path, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer loop.Close()
	if err := configure(int(loop.Fd()), int(file.Fd()), name); err != nil {
		return "", &os.PathError{Op: "attach", Path: path, Err: err}
	}
	return path, nil
}

// configure attaches in one step, so that a crash leaves all or nothing.
func configure(loop, file int, name tag) error {
	config := unix.LoopConfig{Fd: uint32(file), Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY, File_name: name}}
	err := eintr.Do(func() error { return unix.IoctlLoopConfigure(loop, &config) })
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) { // before Linux 5.8
		return configureOld(loop, file, name)
	}
	return err
}

// configureOld is configure for kernels without LOOP_CONFIGURE. A descriptor
// that cannot write makes the device read-only.
func configureOld(loop, file int, name tag) error {
	if err := eintr.Do(func() error { return unix.IoctlSetInt(loop, unix.LOOP_SET_FD, file) }); err != nil {
		return err
	}
	info := unix.LoopInfo64{Flags: unix.LO_FLAGS_READ_ONLY, File_name: name}
	return eintr.Do(func() error { return unix.IoctlLoopSetStatus64(loop, &info) })
}

// Holding returns the loop devices that hold path, by /sys; those whose bind
// mount was detached are asked themselves. The parent of path may lead there by
// links, as the kernel's own name for it does not.
func Holding(path string) (devices []string, err error) { return holding(sysBlock, path, nameOf) }

func holding(sys, path string, nameOf func(device string) tag) (devices []string, err error) {
	want, err := realPath(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil // and nothing is at path
	case err != nil:
		return nil, err
	}
	name, err := tagOf(path)
	if err != nil {
		return nil, err
	}
	blocks, err := os.ReadDir(sys)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, b := range blocks {
		if !strings.HasPrefix(b.Name(), "loop") {
			continue
		}
		backing, err := os.ReadFile(filepath.Join(sys, b.Name(), "loop", "backing_file"))
		if err != nil {
			continue // nothing is attached, or no more
		}
		device := "/dev/" + b.Name()
		switch strings.TrimSuffix(string(backing), "\n") {
		case want, want + " (deleted)":
			devices = append(devices, device)
		case "/":
			if nameOf(device) == name {
				devices = append(devices, device)
			}
		}
	}
	return devices, nil
}

// nameOf is what a loop device says that it holds; empty where it is not told.
func nameOf(device string) (name tag) {
	loop, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return name
	}
	defer loop.Close()
	err = eintr.Do(func() error {
		info, err := unix.IoctlLoopGetStatus64(int(loop.Fd()))
		if err == nil {
			name = info.File_name
		}
		return err
	})
	if err != nil {
		return tag{}
	}
	return name
}

// Release ends every hold of path; none is success. A loop device that another
// process has open goes when that closes it.
func Release(path string) error {
	devices, err := Holding(path)
	if err != nil {
		return err
	}
	for _, device := range devices {
		if err := clearLoop(device); err != nil {
			return err
		}
	}
	return nil
}

func clearLoop(device string) error {
	loop, err := os.OpenFile(device, os.O_RDONLY|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer loop.Close()
	err = eintr.Do(func() error { return unix.IoctlSetInt(int(loop.Fd()), unix.LOOP_CLR_FD, 0) })
	if err != nil && !errors.Is(err, unix.ENXIO) { // ENXIO: it is free already
		return &os.PathError{Op: "detach", Path: device, Err: err}
	}
	return nil
}
