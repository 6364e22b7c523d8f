// Package loopdev gives tests block devices that are backed by sparse files.
//
// Loop devices belong to the machine and not to a namespace, so they are made
// to clear themselves: whatever happens to the test, even if it is killed,
// nothing is left behind. They need root outside of user namespaces. Like every
// package below util, it carries no promise of compatibility.
package loopdev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Device is a loop device that exists until the test's cleanup.
type Device struct {
	// Path is the device node, and Backing the file with its content, which a
	// test may write to.
	Path, Backing string
	open          *os.File
}

// New returns a device of size bytes that reads as zeroes. Like the test's
// temporary directory it is gone when the test is over; what still has it
// mounted then keeps it until the unmount.
func New(t testing.TB, size int64) *Device {
	t.Helper()
	backing := filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(backing, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(backing, size); err != nil {
		t.Fatal(err)
	}
	return Of(t, backing, 0)
}

// Of returns a device with the content of a file; flags are those of loop(4),
// such as unix.LO_FLAGS_READ_ONLY.
func Of(t testing.TB, backing string, flags uint32) *Device {
	t.Helper()
	mode := os.O_RDWR
	if flags&unix.LO_FLAGS_READ_ONLY != 0 {
		mode = os.O_RDONLY
	}
	file, err := os.OpenFile(backing, mode, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	d, err := attach(file, flags)
	if err != nil {
		t.Fatalf("make a loop device: %v", err)
	}
	t.Cleanup(func() { d.open.Close() })
	return d
}

// Resize makes the device as large as its file is made here.
func (d *Device) Resize(t testing.TB, size int64) {
	t.Helper()
	if err := os.Truncate(d.Backing, size); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(d.open.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		t.Fatal(err)
	}
}

// Cut returns a device with d's content and size, of which what lies at left
// and beyond cannot be read; d itself shrinks to left.
//
// Truncating d's file would not do on every kernel: the older ones show zeroes
// beyond the end of a file, but not beyond that of a device.
func (d *Device) Cut(t testing.TB, left int64) *Device {
	t.Helper()
	cut := Of(t, d.Path, unix.LO_FLAGS_DIRECT_IO)
	d.Resize(t, left)
	return cut
}

// attach takes a free device. Others may be quicker, so it tries again.
func attach(file *os.File, flags uint32) (*Device, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for range 100 {
		number, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, err
		}
		path := fmt.Sprintf("/dev/loop%d", number)
		device, err := os.OpenFile(path, os.O_RDWR|unix.O_CLOEXEC, 0) // else it would be read-only
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: flags | unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(device.Fd()), &config)
		if err == nil {
			defer device.Close() // a kernel may refuse to mount what is open for writing
			open, err := os.Open(path)
			return &Device{Path: path, Backing: file.Name(), open: open}, err
		}
		device.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, err
		}
	}
	return nil, errors.New("every free loop device was taken by others")
}
