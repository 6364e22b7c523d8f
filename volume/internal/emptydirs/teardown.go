package emptydirs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/openat"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/layout"
)

// NestedMountError says that a directory is kept, with all its contents,
// because something is still mounted below it.
type NestedMountError struct {
	Dir string
	// Mounts are the targets below Dir.
	Mounts []string
}

func (e *NestedMountError) Error() string {
	return fmt.Sprintf("%s is kept: %s still mounted below it; unmount that first", e.Dir, strings.Join(e.Mounts, ", "))
}

// TearDown takes every mount off dir, removes dir with its contents, and the
// volume's marker; the directories above them stay. It is idempotent. It never
// deletes across a mount: one that is left below dir is a *[NestedMountError]
// and nothing is deleted. Calls for one dir must not overlap.
//
// Doomed, if it is not nil, is called once nothing is mounted at dir or below it, so that no
// file server is asked there any more, and before anything is removed. Its error ends the
// teardown.
func TearDown(ctx context.Context, v volume.PodVolume, dir string, wrapped bool, doomed func() error) error {
	m := v.Host.GetMounter()
	if err := podmount.UnmountAll(ctx, m, dir, mount.UnmountOptions{}); err != nil {
		return err
	}
	if err := checkNested(m, dir); err != nil {
		return err
	}
	if doomed != nil {
		if err := doomed(); err != nil {
			return err
		}
	}
	if err := remove(ctx, dir); err != nil {
		return err
	}
	return markerOf(v, dir, wrapped).clear()
}

func remove(ctx context.Context, dir string) error {
	parent, name := filepath.Split(dir)
	if strings.HasPrefix(name, layout.DeletingPrefix) {
		return removetree.Remove(ctx, parent, name)
	}
	doomed := layout.DeletingPrefix + name
	switch err := podmount.RemoveDir(dir); {
	case err == nil && isUnlinked(filepath.Join(parent, doomed)):
		return nil
	case errors.Is(err, unix.ENOTEMPTY):
		if err := setAside(ctx, dir, parent, doomed); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	// An earlier removal may have been interrupted, too.
	return removetree.Remove(ctx, parent, doomed)
}

// isUnlinked takes the first step of [removetree.Remove] by one call instead of five, and reports
// whether that was all: most often there is nothing at the path.
func isUnlinked(path string) bool {
	err := eintr.Do(func() error { return unix.Unlink(path) })
	return err == nil || errors.Is(err, unix.ENOENT)
}

// setAside renames a directory, so that a pod of the same UID that is set up again after a
// crash finds all of the old contents or none. What an interrupted removal has left under
// the new name goes first.
func setAside(ctx context.Context, dir, parent, doomed string) error {
	rename := func() error { return unix.Rename(dir, filepath.Join(parent, doomed)) }
	err := eintr.Do(rename)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.EBUSY) {
		if err := removetree.Remove(ctx, parent, doomed); err != nil {
			return err
		}
		err = eintr.Do(rename)
	}
	if err != nil {
		return &fs.PathError{Op: "rename", Path: dir, Err: err}
	}
	return nil
}

func checkNested(m mount.Interface, dir string) error {
	mounts := table.Of(m)
	real, err := filepath.Clean(dir), error(nil)
	if !openat.IsPlain(real) {
		real, err = filepath.EvalSymlinks(dir)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	nested, err := mount.Below(mounts, real)
	if err != nil {
		return err
	}
	if len(nested) == 0 {
		return nil
	}
	refused := &NestedMountError{Dir: dir}
	for _, e := range nested {
		refused.Mounts = append(refused.Mounts, e.Target)
	}
	return refused
}
