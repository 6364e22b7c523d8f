package emptydirs

import (
	"context"
	"fmt"
	"os"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
)

// resize gives a tmpfs that is mounted already the size that is wanted now.
// Files stay; the kernel refuses less than what they need. A wrapped one keeps the
// size that it was made with, as the kubelet's: its files come from elsewhere, and
// must not be kept from being brought up to date.
func resize(ctx context.Context, m mount.Interface, dir string, o Options) error {
	if o.SizeBytes == 0 || o.Wrapped {
		return nil
	}
	mounts := table.Of(m)
	entry, mounted, err := mounts.At(dir)
	if err != nil || !mounted || entry.FSType != FSTypeMemory {
		return volume.NothingDone(err)
	}
	if size, ok := byteOption(entry, "size"); ok && wholePages(size) == wholePages(o.SizeBytes) {
		return nil
	}
	request := mount.Request{
		Source: FSTypeMemory, Target: dir, FSType: FSTypeMemory,
		Options: []string{"remount", sizeOption(o.SizeBytes)},
	}
	if err := mount.Mount(ctx, m, request); err != nil {
		return volume.NothingDone(fmt.Errorf(
			"the size of the volume in memory stays as it was; if its files need more than %d bytes, remove some or raise the limit: %w", o.SizeBytes, err))
	}
	return nil
}

// wholePages rounds up, as the kernel does with the size of a tmpfs.
func wholePages(bytes int64) int64 {
	page := int64(os.Getpagesize())
	return (bytes-1)/page + 1
}
