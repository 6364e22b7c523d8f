package podrun

import (
	"context"
	"fmt"
	"os"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/volume/containermounts"
)

// withDevices returns the container's mounts with its raw devices after them.
func withDevices(ctx context.Context, mounts []sandbox.Mount, devices []containermounts.Device) ([]sandbox.Mount, error) {
	all := mounts
	for _, d := range devices {
		m, err := deviceMount(d)
		if err != nil {
			return nil, err
		}
		if err := makeDevicePoint(ctx, mounts, m); err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// makeDevicePoint makes the file on which a device is bound, if that file lies in
// a volume. The manager makes such points for mounts only. A runtime makes device
// nodes itself, and would take a file there for the device.
func makeDevicePoint(ctx context.Context, mounts []sandbox.Mount, device sandbox.Mount) error {
	var outer *sandbox.Mount
	var point string
	for i := range mounts {
		rest, ok := pathin.Cut(mounts[i].Destination, device.Destination)
		if ok && rest != "" && !mounts[i].File && (outer == nil || len(mounts[i].Destination) >= len(outer.Destination)) {
			outer, point = &mounts[i], rest
		}
	}
	if outer == nil {
		return nil
	}
	var volumes blockingcall.Group[string] // a server may not answer
	err := volumes.Do(ctx, outer.Source, func() error {
		root, err := os.OpenFile(outer.Source, os.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer root.Close()
		return subpath.MakePoint(ctx, root, point, false)
	})
	if err != nil {
		return fmt.Errorf("volume %q (%s) lies in volume %q (%s), where its mount point cannot be made: %w; give it another devicePath", device.Volume, device.Destination, outer.Volume, outer.Destination, err)
	}
	return nil
}
