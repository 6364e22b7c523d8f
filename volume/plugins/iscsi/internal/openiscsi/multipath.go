package openiscsi

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/podvol/podvol/volume"
)

// multipath is the dm-multipath device of paths; empty: there is none.
func (i *Initiator) multipath(disks []string) (string, error) {
	for _, disk := range disks {
		holders, err := entries(i.block(disk, "holders"))
		if err != nil {
			return "", err
		}
		for _, holder := range holders {
			uuid, err := attribute(i.block(holder), "dm", "uuid")
			if err != nil || strings.HasPrefix(uuid, "mpath-") {
				return holder, err
			}
		}
	}
	return "", nil
}

func isMapped(d Device) bool { return strings.HasPrefix(filepath.Base(d.Path), "dm-") }

// hasMultipathd reports whether there is a daemon that makes devices of paths, by its socket.
// An error means that no path may be used alone: the daemon may be about to take it.
func (i *Initiator) hasMultipathd() (bool, error) {
	sockets, err := os.ReadFile(filepath.Join(i.config.Proc, "net/unix"))
	if err != nil {
		return false, fmt.Errorf("whether multipathd is about to take the paths to the disk is not known: %w", err)
	}
	return strings.Contains(string(sockets), "multipathd"), nil
}

// removeMap removes a dm-multipath device that is not in use.
func (i *Initiator) removeMap(ctx context.Context, mapped string) error {
	path := filepath.Join(i.config.Dev, mapped)
	if user, err := i.config.UsedBy(path); user != "" || err != nil {
		return inUse(path, user, err)
	}
	name, err := attribute(i.block(mapped), "dm", "name")
	if err != nil {
		return err
	}
	return i.mapTool(ctx, mapped, "multipath", "-f", name)
}

// growMap gives a dm-multipath device the size of its paths.
func (i *Initiator) growMap(ctx context.Context, d Device) error {
	mapped := filepath.Base(d.Path)
	name, err := attribute(i.block(mapped), "dm", "name")
	if err != nil {
		return err
	}
	return i.mapTool(ctx, mapped, "multipathd", "resize", "map", name)
}

func (i *Initiator) mapTool(ctx context.Context, mapped, program string, args ...string) error {
	output, code, err := i.config.Run(ctx, program, args...)
	if err == nil && code == 0 {
		return nil
	}
	return &volume.Failure{Cause: volume.ErrInUse, Subject: mapped, Err: err, What: fmt.Sprintf("%s %s: %v (%d) %s", program, strings.Join(args, " "), err, code, lastLines(output)),
		Next: "check whether the device is still in use, and whether multipathd runs"}
}
