// Package blockdev tells what the kernel knows of a block device: how large it
// is, what tells it from other devices whatever it is called, and what uses it.
// All of it is asked of an open device, so that the answers are about one device
// even if its node or link leads elsewhere meanwhile.
//
// Like every package below util, it carries no promise of compatibility.
package blockdev

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// System is where a machine's devices are described. The zero value is the
// process's own machine.
type System struct {
	// Dev, Sys and Proc stand for /dev, /sys and /proc.
	Dev, Sys, Proc string
}

func (s System) dev() string  { return or(s.Dev, "/dev") }
func (s System) sys() string  { return or(s.Sys, "/sys") }
func (s System) proc() string { return or(s.Proc, "/proc") }

func or(dir, otherwise string) string {
	if dir == "" {
		return otherwise
	}
	return dir
}

// Device is an open block device. Its methods are safe for concurrent use; a
// device that does not answer may block them.
type Device struct {
	file   *os.File
	number uint64
	system System
}

// Open opens a block device with flags of open(2), such as unix.O_RDONLY or, to
// have it for oneself, unix.O_RDWR|unix.O_EXCL: that is EBUSY where it is
// mounted, swapped on, or part of something. Links are followed. Another kind of
// file is not opened: the error matches ENOTBLK.
func (s System) Open(path string, flags int) (*Device, error) {
	// A pipe would wait for a writer, and a character device may do anything when
	// it is opened.
	probe, err := eintr.Get(func() (int, error) { return unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(probe)
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstat(probe, &st) }); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK {
		return nil, &os.PathError{Op: "open", Path: path, Err: unix.ENOTBLK}
	}
	// O_NONBLOCK: a drive without a medium.
	fd, err := eintr.Get(func() (int, error) {
		return unix.Open(fmt.Sprintf("/proc/self/fd/%d", probe), flags|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &Device{file: os.NewFile(uintptr(fd), path), number: uint64(st.Rdev), system: s}, nil
}

// Close closes the device.
func (d *Device) Close() error { return d.file.Close() }

// File is the open device, which Close closes.
func (d *Device) File() *os.File { return d.file }

// Path is the path by which it was opened.
func (d *Device) Path() string { return d.file.Name() }

// Number is its device number, as unix.Mkdev makes it.
func (d *Device) Number() uint64 { return d.number }

// Size returns its size in bytes (BLKGETSIZE64, linux/fs.h).
func (d *Device) Size() (int64, error) {
	var size uint64
	if err := d.ioctl(unix.BLKGETSIZE64, unsafe.Pointer(&size)); err != nil {
		return 0, err
	}
	return int64(size), nil
}

// ReadOnly reports whether it is write-protected (BLKROGET).
func (d *Device) ReadOnly() (bool, error) {
	var readOnly int32
	err := d.ioctl(unix.BLKROGET, unsafe.Pointer(&readOnly))
	return readOnly != 0, err
}

func (d *Device) ioctl(request uint, answer unsafe.Pointer) error {
	err := eintr.Do(func() error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.file.Fd(), uintptr(request), uintptr(answer)); errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return &os.PathError{Op: "ioctl", Path: d.Path(), Err: err}
	}
	return nil
}

// described is the device's directory in sysfs.
func (d *Device) described() string {
	return filepath.Join(d.system.sys(), "dev/block", fmt.Sprintf("%d:%d", unix.Major(d.number), unix.Minor(d.number)))
}

// KernelName returns what the kernel calls the device at present, such as "sdb",
// or its number where that is not known.
func (d *Device) KernelName() string {
	target, err := os.Readlink(d.described())
	if err != nil {
		return fmt.Sprintf("%d:%d", unix.Major(d.number), unix.Minor(d.number))
	}
	return filepath.Base(target)
}

// attribute returns a line of sysfs, empty where there is none.
func attribute(path ...string) string {
	text, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// isDevice reports whether the node at path is this device's.
func (d *Device) isAt(path string) bool {
	var st unix.Stat_t
	err := eintr.Do(func() error { return unix.Stat(path, &st) })
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFBLK && uint64(st.Rdev) == d.number
}
