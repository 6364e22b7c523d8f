//go:build linux

package containermounts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/subpath"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/mountrecord"
)

// subPathBind is one sub-path on its way to its place below volume-subpaths,
// from where the runtime takes it: no name that a container can change lies on
// the way to it.
type subPathBind struct {
	binder   *Binder
	volume   mountedVolume
	path     string // beneath the volume
	target   string
	readOnly bool
}

func (b *Binder) subPathBind(c *container, p *planned) *subPathBind {
	dir := p.volume.subPaths().Dir(b.host.RootDir)
	return &subPathBind{
		binder: b, volume: p.volume, path: p.SubPath,
		target:   filepath.Join(dir, c.spec.Name, strconv.Itoa(p.index)),
		readOnly: p.volume.readOnly(),
	}
}

// do has the sub-path bound, and waits for it as long as ctx allows. One call
// for a target is under way at a time, and none is begun after the manager has
// stopped.
func (b *subPathBind) do(ctx context.Context) (sourceLook, error) {
	var made sourceLook
	err := b.binder.reach(ctx, b.target, func() (err error) {
		made, err = b.bind(ctx)
		return err
	})
	if err != nil {
		return sourceLook{}, err
	}
	return made, nil
}

// bind resolves the sub-path and compares it with the existing bind. Both ask the
// volume's file system, which may hang: only callers for the same sub-path wait
// for them.
func (b *subPathBind) bind(ctx context.Context) (sourceLook, error) {
	file, err := b.open(ctx)
	if err != nil {
		return sourceLook{}, err
	}
	defer file.Close()
	want, err := identify(file)
	if err != nil {
		return sourceLook{}, err
	}
	mounts := table.Of(b.binder.host.Mounter)
	bound, err := b.isBound(mounts, want)
	if err == nil && !bound {
		err = b.rebind(ctx, file, want)
	}
	if err != nil {
		return sourceLook{}, err
	}
	e, mounted, err := mounts.At(b.target)
	if err == nil && !mounted {
		err = mountrecord.ErrNotMountedAnymore // unmounted by another process
	}
	return sourceLook{mount: e, file: !want.dir}, err
}

// open opens the sub-path beneath the volume's root.
func (b *subPathBind) open(ctx context.Context) (*os.File, error) {
	root, err := b.binder.openVolume(b.volume.record)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	if !b.readOnly {
		return subpath.OpenOrMake(ctx, root, b.path)
	}
	file, err := subpath.Open(root, b.path)
	if errors.Is(err, fs.ErrNotExist) {
		err = &subpath.ReadOnlyError{Volume: root.Name(), Path: b.path}
	}
	return file, err
}

// isBound reports whether the target shows the wanted file, with all flags of the
// volume's mount. As long as it is bound, no other file has its number.
func (b *subPathBind) isBound(mounts mount.Table, want fileIdentity) (bool, error) {
	at, mounted, err := mounts.At(b.target)
	if err != nil || !mounted {
		return false, err
	}
	from, mounted, err := mounts.At(b.volume.record.Path)
	if err != nil {
		return false, err
	}
	if mounted && from.Device == at.Device && !containsAll(lockedFlags(at), lockedFlags(from)) {
		return false, nil
	}
	file, err := openPlace(b.target)
	if err != nil {
		return false, nil //nolint:nilerr // a server that has forgotten the file: it is bound anew
	}
	defer file.Close()
	is, err := identify(file)
	return err == nil && is == want, nil
}

func containsAll(all, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

// rebind binds the wanted file to the target, in place of an existing bind.
// Nothing here asks the volume's file system, so that a tear-down can wait for
// it.
func (b *subPathBind) rebind(ctx context.Context, file *os.File, want fileIdentity) error {
	unlock, err := b.binder.binding.Lock(ctx, b.volume.subPaths())
	if err != nil {
		return err
	}
	defer unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx) // no call waits for it any more
	}
	// It is seen through though the caller has left, since the mount must be known
	// under the lock.
	ctx, done, err := b.binder.volumes.Admit(ctx, b.volume.record)
	if err != nil {
		return err
	}
	defer done()
	if err := b.clear(ctx, want.dir); err != nil {
		return err
	}
	err = mount.Mount(ctx, b.binder.host.Mounter, mount.Request{
		Source:  fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), // a mounter may be another process
		Target:  b.target,
		Options: []string{"bind"},
	})
	if err != nil {
		return fmt.Errorf("its sub-path %q cannot be bound: %w", b.path, err)
	}
	return nil
}

// clear makes the target a bare mount point.
func (b *subPathBind) clear(ctx context.Context, dir bool) error {
	if err := podmount.UnmountAll(ctx, b.binder.host.Mounter, b.target, mount.UnmountOptions{}); err != nil {
		return err
	}
	err := podmount.MakePoint(b.target, dir)
	if errors.Is(err, fs.ErrExist) { // of the other kind, perhaps
		if err := podmount.RemovePoint(b.target); err != nil {
			return err
		}
		err = podmount.MakePoint(b.target, dir)
	}
	return err
}
