package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/blockdev"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/localdisk"
	"github.com/podvol/podvol/volume/reclaim"
)

const (
	// wipedHead and wipedTail are what package format wants to be zeroes.
	wipedHead = 4 << 20
	wipedTail = 1 << 20
	// wipedAround is the size that is overwritten around a signature.
	wipedAround = 64 << 10
	// atOnce is how much is overwritten by one call, which cannot be cancelled.
	atOnce = 64 << 20
	// rounds bounds how often more signatures come to light.
	rounds = 200
)

// cleanDevice wipes the device. It holds it exclusively until the end, so that
// no program can mount, format or use it meanwhile.
func (c *cleaning) cleanDevice(ctx context.Context) error {
	if c.plugin.config.Clean.Devices == WipeNever {
		return volume.NothingDone(volume.Invalid("local.path", "is a device, and local.Config.Clean.Devices does not say how devices are wiped"))
	}
	if err := c.deviceUnused(); err != nil {
		return volume.NothingDone(err)
	}
	device, err := localdisk.OpenDevice(c.pv, c.plugin.config.System, unix.O_RDWR|unix.O_EXCL)
	if errors.Is(err, unix.EBUSY) {
		err = fmt.Errorf("the device is mounted in another mount namespace, swapped on, or part of something; it is wiped once it is free: %w", err)
	}
	if err != nil {
		return volume.NothingDone(err)
	}
	defer device.Close()
	size, err := device.Size()
	if err != nil {
		return volume.NothingDone(err)
	}
	readOnly, err := device.ReadOnly()
	if err != nil {
		return volume.NothingDone(fmt.Errorf("cannot check whether it is write-protected: %w", err))
	}
	if readOnly {
		return volume.NothingDone(fmt.Errorf("%s is write-protected: %w", c.path, unix.EROFS))
	}
	if c.plugin.config.Clean.Action != CleanDelete {
		return c.dryRunDevice(ctx, device, size)
	}
	if err := c.verify(ctx); err != nil {
		return err
	}
	w := &wiper{cleaning: c, device: device, size: size, asked: time.Now()}
	if err := w.wipe(ctx); err != nil {
		return fmt.Errorf("wiping %s stopped: %w; another try begins anew", c.path, err)
	}
	return nil
}

// deviceUnused makes sure that no mount of this node has the device, neither its
// file system nor its node.
func (c *cleaning) deviceUnused() error {
	device, err := localdisk.OpenDevice(c.pv, c.plugin.config.System, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer device.Close()
	mounts, err := c.table.ByDevice(device.Number())
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return stillMounted(mounts[0].Source, mounts[0].Target)
	}
	nodes, err := table.NodesOf(c.table, device.Number()) // block volumes
	if err != nil {
		return err
	}
	for _, e := range nodes {
		if e.Target != c.path {
			return stillMounted(c.path, e.Target)
		}
	}
	holders, err := device.Holders()
	if err == nil && len(holders) > 0 {
		err = stillMounted(c.path, "/dev/"+holders[0])
	}
	return err
}

func (c *cleaning) dryRunDevice(ctx context.Context, device *blockdev.Device, size int64) error {
	found, err := format.Inspect(ctx, device.File(), size)
	if err != nil {
		return volume.NothingDone(err)
	}
	e := &reclaim.DryRunError{
		Source: fmt.Sprintf("%s (%s: %s)", c.path, device.KernelName(), found), Bytes: size,
		Do: fmt.Sprintf("to have released volumes wiped, set local.Config.Clean.Action to %s", CleanDelete),
	}
	return volume.NothingDone(e)
}

// wiper overwrites one device.
type wiper struct {
	*cleaning
	device *blockdev.Device
	size   int64
	asked  time.Time
}

func (w *wiper) wipe(ctx context.Context) error {
	switch w.plugin.config.Clean.Devices {
	case WipeZero:
		if err := w.all(ctx, w.zero); err != nil {
			return err
		}
	case WipeDiscard:
		if err := w.all(ctx, w.discard); err != nil {
			return err
		}
	}
	if err := w.each(ctx, 0, min(w.size, wipedHead), w.zero); err != nil {
		return err
	}
	if err := w.each(ctx, max(0, w.size-wipedTail), w.size, w.zero); err != nil {
		return err
	}
	if err := w.signatures(ctx); err != nil {
		return err
	}
	if err := eintr.Do(func() error { return unix.Fsync(int(w.device.File().Fd())) }); err != nil {
		return &os.PathError{Op: "fsync", Path: w.path, Err: err}
	}
	// Partitions that are not there any more; a device that cannot have any says no.
	_ = unix.IoctlSetInt(int(w.device.File().Fd()), unix.BLKRRPART, 0)
	return nil
}

// signatures overwrites what the ends have left, until nothing is found: where the
// first superblock is gone, copies of it come to light.
func (w *wiper) signatures(ctx context.Context) error {
	for range rounds {
		found, err := format.Inspect(ctx, w.device.File(), w.size)
		if err != nil || found.Blank() {
			return err
		}
		for _, s := range found.Signatures {
			start := s.Offset &^ 511
			if err := w.each(ctx, max(0, start-wipedAround), min(w.size, start+wipedAround), w.zero); err != nil {
				return err
			}
		}
		if found.Data {
			return fmt.Errorf("it has %s although that was overwritten", found)
		}
	}
	return errors.New("it shows ever more signatures although they are overwritten")
}

func (w *wiper) all(ctx context.Context, do func(offset, n int64) error) error {
	return w.each(ctx, 0, w.size, do)
}

// each calls do for all between two offsets, and asks before each whether it may.
func (w *wiper) each(ctx context.Context, from, to int64, do func(offset, n int64) error) error {
	for at := from; at < to; at += atOnce {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Since(w.asked) > time.Second {
			if err := w.verify(ctx); err != nil {
				return err
			}
			w.asked = time.Now()
		}
		if err := do(at, min(atOnce, to-at)); err != nil {
			return &os.PathError{Op: "wipe", Path: w.path, Err: err}
		}
	}
	return nil
}

func (w *wiper) zero(offset, n int64) error { return w.ioctl(unix.BLKZEROOUT, offset, n) }

func (w *wiper) discard(offset, n int64) error {
	err := w.ioctl(unix.BLKDISCARD, offset, n)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("the device knows no discard; use local.Config.Clean.Devices %s or %s: %w", WipeSignatures, WipeZero, err)
	}
	return err
}

func (w *wiper) ioctl(request uint, offset, n int64) error {
	area := [2]uint64{uint64(offset), uint64(n)}
	return eintr.Do(func() error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, w.device.File().Fd(), uintptr(request), uintptr(unsafe.Pointer(&area))); errno != 0 {
			return errno
		}
		return nil
	})
}
