package podmount

import (
	"context"
	"fmt"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/meter"
)

// Metrics measures the file system that is mounted at dir. Where nothing is
// mounted the error matches [mount.ErrNotMounted]: the numbers would be the
// node's own disk's.
func Metrics(ctx context.Context, m mount.Interface, meter *meter.Meter, dir string) (*volume.Metrics, error) {
	_, mounted, err := at(m, dir)
	if err != nil {
		return nil, err
	}
	if !mounted {
		return nil, fmt.Errorf("%s: %w", dir, mount.ErrNotMounted)
	}
	return meter.FileSystem(ctx, dir)
}
