package openiscsi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/volume"
)

// remove flushes the disk and has the kernel forget it.
func (i *Initiator) remove(ctx context.Context, lun LUN, sessions []session) error {
	var disks []string
	for _, s := range sessions {
		names, err := s.disks(lun.Number)
		if err != nil {
			return err
		}
		disks = append(disks, names...)
	}
	mapped, err := i.multipath(disks)
	if err == nil && mapped != "" {
		err = i.removeMap(ctx, mapped)
	}
	if err != nil {
		return err
	}
	var busy error
	for _, disk := range disks {
		err := i.calls.Do(ctx, disk, func() error { return i.removeDisk(ctx, disk) })
		if errors.Is(err, volume.ErrInUse) {
			busy, err = err, nil
		}
		if err != nil {
			return err
		}
	}
	return busy
}

// removeDisk has the disk for itself until the kernel has forgotten it: nothing can begin to
// use it meanwhile. Once ctx has ended, the disk stays.
func (i *Initiator) removeDisk(ctx context.Context, disk string) error {
	path := filepath.Join(i.config.Dev, disk)
	fd, err := eintr.Get(func() (int, error) { return i.open(path) })
	if err == nil {
		defer unix.Close(fd)
	}
	if user, err := i.config.UsedBy(path); user != "" || err != nil { // also of a target that is away, and may come back
		return inUse(path, user, err)
	}
	switch {
	case errors.Is(err, unix.EBUSY):
		return inUse(path, "it is mounted, or part of another device", err)
	case err == nil:
		if err := eintr.Do(func() error { return unix.Fsync(fd) }); err != nil {
			i.config.Logger.Warn("a disk could not be flushed before it was given back", "disk", path, "error", err)
		}
	case isDead(err):
		i.config.Logger.Warn("a disk could not be opened before it was given back", "disk", path, "error", err)
	default: // it may be in use
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	err = i.put(i.block(disk, "device", "delete"), "1")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// inUse says who has a disk, or that this is not known.
func inUse(path, user string, err error) error {
	if user == "" {
		return fmt.Errorf("whether the disk %s is in use is not known: %w", path, err)
	}
	return &volume.Failure{Cause: volume.ErrInUse, Subject: path, What: fmt.Sprintf("the disk %s is in use on this node: %s", path, user), Err: err,
		Next: "it is given back once nothing uses it any more"}
}

// isDead reports whether a disk cannot be opened because it does not answer, so that nothing
// can use it.
func isDead(err error) bool {
	return slices.ContainsFunc([]error{unix.ENXIO, unix.ENODEV, unix.EIO, unix.ENOMEDIUM, unix.ETIMEDOUT}, func(e error) bool { return errors.Is(err, e) })
}

func openAlone(path string) (int, error) {
	return eintr.Get(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0) })
}

// UsedElsewhere returns another path to the disk of d, by its identity, that is in use on this
// node, and by what: it is mounted, part of a device other than d, or usedBy says so of it.
// Empty: there is none.
func (i *Initiator) UsedElsewhere(ctx context.Context, d Device, usedBy func(device string) (user string, err error)) (path, user string, err error) {
	if d.ID == "" {
		return "", "", nil
	}
	disks, err := entries(filepath.Join(i.config.Sys, "block"))
	if err != nil {
		return "", "", err
	}
	for _, disk := range disks {
		is, err := i.isAnotherPath(disk, d)
		if err != nil {
			return "", "", err
		}
		if !is {
			continue
		}
		path := filepath.Join(i.config.Dev, disk)
		err = i.calls.Do(ctx, disk, func() error { return i.checkFree(path) })
		if errors.Is(err, unix.EBUSY) {
			return path, "it is mounted, or part of another device", nil
		}
		if err != nil {
			return "", "", err
		}
		if user, err := usedBy(path); user != "" || err != nil {
			return path, user, err
		}
	}
	return "", "", nil
}

// isAnotherPath reports whether a disk is that of d, and neither d itself nor a part of it.
func (i *Initiator) isAnotherPath(disk string, d Device) (bool, error) {
	if filepath.Join(i.config.Dev, disk) == d.Path || isMapped(d) && slices.Contains(d.Disks, disk) {
		return false, nil
	}
	id, err := i.id(disk)
	if err != nil || id != d.ID {
		return false, err
	}
	held, err := i.multipath([]string{disk})
	return held == "" || filepath.Join(i.config.Dev, held) != d.Path, err
}

// checkFree fails while something has a disk for itself; what is dead has no user.
func (i *Initiator) checkFree(path string) error {
	fd, err := eintr.Get(func() (int, error) { return i.open(path) })
	if err == nil {
		return unix.Close(fd)
	}
	if isDead(err) {
		return nil
	}
	return &fs.PathError{Op: "open", Path: path, Err: err}
}

// multipathPatience is how long dm-multipath may take to make a device of several paths: the
// kubelet's.
const multipathPatience = 10 * time.Second
