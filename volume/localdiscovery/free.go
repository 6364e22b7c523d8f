package localdiscovery

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/volume/internal/localdisk"
)

// checkFree refuses a device that anything uses, or that is part of something.
// It is asked before a device is offered, and not of those that are, whose pods
// use them.
func (d *Discoverer) checkFree(ctx context.Context, t *thing) {
	given := *t
	found := make(chan thing, 1)
	err := d.bounded(ctx, t.Path, func() error {
		answer := given
		err := d.free(ctx, &answer)
		found <- answer
		return err
	})
	if err != nil {
		t.fail(err)
		return
	}
	*t = <-found
}

// free may block.
func (d *Discoverer) free(ctx context.Context, t *thing) error {
	device, err := d.System.Open(t.Path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer device.Close()
	if device.Number() != t.number {
		return fmt.Errorf("%s leads to another device than before", t.Path)
	}
	mounts, err := d.Mounts.ByDevice(t.number)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		t.refuse(ErrInUse, "%s is mounted at %s", t.Source, mounts[0].Target)
		return nil
	}
	parts, err := device.Partitions()
	if err != nil {
		return err
	}
	if len(parts) > 0 {
		t.refuse(ErrPartitioned, "%s has %s; make a link to a partition instead, or wipe the table (wipefs -a)", t.Source, strings.Join(parts, ", "))
		return nil
	}
	uses, err := device.Uses()
	if err != nil {
		return err
	}
	if len(uses) > 0 {
		t.refuse(ErrInUse, "%s: %s", t.Source, strings.Join(uses, ", "))
		return nil
	}
	return d.inspect(ctx, t)
}

// inspect has the device for itself while it looks at its content.
func (d *Discoverer) inspect(ctx context.Context, t *thing) error {
	device, err := d.System.Open(t.Path, unix.O_RDONLY|unix.O_EXCL)
	if errors.Is(err, unix.EBUSY) {
		t.refuse(ErrInUse, "%s is opened exclusively: it is mounted in another mount namespace, swapped on, being formatted, or part of something", t.Source)
		return nil
	}
	if err != nil {
		return err
	}
	defer device.Close()
	if device.Number() != t.number {
		return fmt.Errorf("%s leads to another device than before", t.Path)
	}
	size, err := device.Size()
	if err != nil {
		return err
	}
	if uuid := device.FileSystemUUID(); uuid != "" {
		t.other = localdisk.Identity{"uuid:" + uuid}
	}
	found, err := format.Inspect(ctx, device.File(), size)
	if err != nil {
		return err
	}
	for _, s := range found.Signatures {
		switch s.Kind {
		case format.PartitionTable:
			t.refuse(ErrPartitioned, "%s has a %s; make a link to a partition instead, or wipe the table (wipefs -a)", t.Source, found)
		case format.Member:
			t.refuse(ErrInUse, "%s is part of something: %s; wipe it (wipefs -a) if that is not needed", t.Source, found)
		}
	}
	return nil
}
