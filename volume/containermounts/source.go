//go:build linux

package containermounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/volume/mountrecord"
)

// source implements places. It binds a sub-path to where it is taken from.
func (b *Binder) source(ctx context.Context, c *container, p *planned) error {
	var seen sourceLook
	var err error
	if p.SubPath == "" {
		p.Source = p.volume.record.Path
		seen, err = b.look(ctx, p.volume.record)
	} else {
		part := b.subPathBind(c, p)
		p.Source = part.target
		seen, err = part.do(ctx)
	}
	if err != nil {
		return err
	}
	p.File, p.fixed = seen.file, seen.mount.ReadOnly()
	p.ReadOnly = p.ReadOnly || p.fixed
	p.Locked = lockedFlags(seen.mount)
	return nil
}

// lockedFlags are the flags of a mount that a bind of it must not lose, in the
// table's order.
func lockedFlags(e mount.Entry) (flags []string) {
	keep := []string{"ro", "nosuid", "nodev", "noexec", "noatime", "nodiratime", "nosymfollow"}
	for _, option := range e.Options {
		if slices.Contains(keep, option) {
			flags = append(flags, option)
		}
	}
	return flags
}

// sourceLook is what there is at a volume's path.
type sourceLook struct {
	mount mount.Entry // in which it lies
	file  bool
}

// look looks at a volume's path. A mount point of the manager's own is looked up
// in the mount table alone, so that a server that does not answer cannot hold
// it up; anything else, until ctx ends.
func (b *Binder) look(ctx context.Context, r *mountrecord.Record) (sourceLook, error) {
	mounts := table.Of(b.host.Mounter)
	own := pathin.Strictly(podsDir(b.host.RootDir), r.Path)
	if own {
		e, mounted, err := mounts.At(r.Path)
		if err != nil || mounted {
			return sourceLook{mount: e}, err
		}
		if r.Confirmed != nil && r.Confirmed.MountPoint {
			return sourceLook{}, mountrecord.ErrNotMountedAnymore
		}
	}
	var seen sourceLook
	err := b.reaches.Do(ctx, r.Path, func() error {
		info, err := os.Stat(r.Path)
		if err != nil {
			return err
		}
		seen.file = !info.IsDir()
		seen.mount, err = table.Containing(mounts, r.Path)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return sourceLook{}, fmt.Errorf("the source of the container's mount does not exist: %w; make it on the node, or let a hostPath's type do that (DirectoryOrCreate, FileOrCreate)", err)
	}
	if err != nil {
		return sourceLook{}, fmt.Errorf("cannot read the source of the container's mount: %w", err)
	}
	return seen, nil
}

// openVolume opens the root of a volume, but no bare mount point.
func (b *Binder) openVolume(r *mountrecord.Record) (*os.File, error) {
	if r.Confirmed == nil || !r.Confirmed.MountPoint || !pathin.Strictly(podsDir(b.host.RootDir), r.Path) {
		return openPlace(r.Path)
	}
	return b.openMounted(r.Path)
}

// openMounted opens the mount at a path: only after that does the mount table say
// that it was no bare mount point.
func (b *Binder) openMounted(path string) (*os.File, error) {
	mounts := table.Of(b.host.Mounter)
	root, err := openPlace(path)
	if err != nil {
		return nil, err
	}
	_, mounted, err := mounts.At(path)
	if err == nil && !mounted {
		err = mountrecord.ErrNotMountedAnymore
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// reach implements places. The root directory stays locked for a call that hangs.
func (b *Binder) reach(ctx context.Context, path string, f func() error) error {
	return b.reaches.Do(ctx, path, func() error {
		done, err := b.volumes.KeepRoot()
		if err != nil {
			return err
		}
		defer done()
		return f()
	})
}

// openSource implements places.
func (b *Binder) openSource(shown *planned) (*os.File, error) {
	if shown.SubPath != "" {
		return b.openMounted(shown.Source)
	}
	return b.openVolume(shown.volume.record)
}
