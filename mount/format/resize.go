package format

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
)

// NeedsResize reports whether the device has room, at least one block, that the file
// system on it, mounted at mountPoint, does not use. It only reads. It is false for a
// write-protected device and for a blank one, as a mkfs takes all there is. Ext2 to ext4
// and XFS never use a rest that is too small for another block group: it may stay true
// after a resize, and resizing again does no harm.
//
// Errors are *[Error]: [ErrNotSupported] for other file systems than ext2 to ext4, xfs
// and btrfs, [ErrNotBlockDevice], [ErrUnreadable], [ErrCanceled].
func (f *Formatter) NeedsResize(ctx context.Context, device, mountPoint string) (bool, error) {
	needs := make(chan bool, 1)
	err := f.onDevice(ctx, device, func() error {
		size, err := f.sizes(ctx, device, mountPoint)
		needs <- size.hasRoom()
		return err
	})
	if err != nil {
		return false, err
	}
	return <-needs, nil
}

// Resize grows the file system on device, mounted at mountPoint, to all of the
// device, and reports whether it grew. Where there is nothing to do it does
// nothing, so it may be repeated. It runs resize2fs, xfs_growfs or btrfs, which
// go on when ctx ends, and then the error is Uncertain; the next call waits for
// them.
//
// Errors are *[Error] as for NeedsResize, and [ErrToolMissing], and
// [ErrResizeFailed] with the program's output.
func (f *Formatter) Resize(ctx context.Context, device, mountPoint string) (grown bool, err error) {
	results := make(chan bool, 1)
	err = f.onDevice(ctx, device, func() error {
		grown, err := f.grow(ctx, device, mountPoint)
		results <- grown
		return err
	})
	if err != nil {
		return false, err
	}
	return <-results, nil
}

// onDevice makes a call, one at a time for each device.
func (f *Formatter) onDevice(ctx context.Context, device string, call func() error) error {
	n, err := nodeAt(device)
	if err != nil {
		return &Error{Op: OpResize, Device: device, Reason: ErrNotBlockDevice, Err: err}
	}
	err = f.calls.Do(ctx, n.number, call)
	// The call's own error may well wrap another of this type.
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && error(abandoned) == err {
		return &Error{Op: OpResize, Device: device, Reason: ErrCanceled, Uncertain: abandoned.Started || abandoned.Earlier, Err: abandoned.Err}
	}
	return err
}

func (f *Formatter) grow(ctx context.Context, device, mountPoint string) (bool, error) {
	before, err := f.sizes(ctx, device, mountPoint)
	if err != nil || !before.hasRoom() {
		return false, err
	}
	c, err := f.resizer(before, device, mountPoint)
	if err != nil {
		return false, err
	}
	output, err := c.finish()
	f.config.Logger.InfoContext(ctx, "resize", "command", c.String(), "error", err)
	if err != nil {
		return false, &Error{Op: OpResize, Device: device, FSType: before.fstype, Reason: ErrResizeFailed, Command: c.String(), Output: output, Err: err}
	}
	after, err := f.sizes(context.WithoutCancel(ctx), device, mountPoint)
	return err == nil && after.filesystem > before.filesystem, err
}

// resizer is the program that grows a type of file system.
func (f *Formatter) resizer(s sizes, device, mountPoint string) (*command, error) {
	name, args := "resize2fs", []string{device}
	switch s.fstype {
	case "xfs":
		name, args = "xfs_growfs", []string{"-d", mountPoint}
	case "btrfs":
		name, args = "btrfs", []string{"filesystem", "resize", fmt.Sprintf("%d:max", s.id), mountPoint}
	}
	path, err := f.find(name)
	if err != nil {
		return nil, &Error{Op: OpResize, Device: device, FSType: s.fstype, Reason: ErrToolMissing, Err: err}
	}
	return &command{path: path, args: args}, nil
}

// sizes reads the size of a device and of the file system on it.
func (f *Formatter) sizes(ctx context.Context, path, mountPoint string) (sizes, error) {
	fail := func(reason Reason, fstype string, err error) error {
		return &Error{Op: OpResize, Device: path, FSType: fstype, Reason: reason, Err: err}
	}
	n, err := nodeAt(path)
	var device *device
	if err == nil {
		device, err = openDevice(n, 0)
	}
	if errors.Is(err, unix.ENOTBLK) {
		return sizes{}, fail(ErrNotBlockDevice, "", err)
	}
	if err != nil {
		return sizes{}, fail(ErrUnreadable, "", err)
	}
	defer device.Close()
	content, err := Inspect(ctx, device, device.size)
	if ctx.Err() != nil {
		return sizes{}, fail(ErrCanceled, "", context.Cause(ctx))
	}
	if err != nil {
		return sizes{}, fail(ErrUnreadable, "", err)
	}
	readOnly, err := unix.IoctlGetInt(int(device.Fd()), unix.BLKROGET)
	if err != nil {
		return sizes{}, fail(ErrUnreadable, "", err)
	}
	if content.Blank() || readOnly != 0 {
		return sizes{}, nil
	}
	for _, s := range content.Signatures {
		if size := sizer(s); size != nil {
			found, err := size(device, mountPoint)
			if err != nil {
				return sizes{}, fail(ErrUnreadable, s.Type, err)
			}
			found.fstype, found.device = s.Type, device.size
			return found, nil
		}
	}
	unsupported := &Error{Op: OpResize, Device: path, Reason: ErrNotSupported, Found: content}
	return sizes{}, unsupported
}
