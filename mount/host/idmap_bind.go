package host

import (
	"context"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/util/blockingcall"
)

// BindIDMapped makes a bind mount that shows its files with other owners.
//
//   - New files in it get the owner on disk that is mapped to their shown owner.
//   - It changes neither the file system nor any other mount of it
//     (mount_setattr(2), MOUNT_ATTR_IDMAP).
//   - The request is one for [Mounter.MountContext] whose options ask for a
//     bind mount. With rbind the mounts below are mapped as well, all or none.
//     ctx, the target and errors are as there.
//   - If the mount cannot be made, the error is an *[mount.Error] with the cause
//     [mount.ErrNoIDMap] and an *[IDMapError] with the reason. It is never replaced by
//     a change of the files' owners.
func (m *Mounter) BindIDMapped(ctx context.Context, r mount.Request, ids IDMap) error {
	if err := r.Check(); err != nil {
		return r.NotBegun(err)
	}
	o := mountopt.Parse(slices.Concat(r.Options, r.Sensitive)...)
	if !o.Bind || o.Remount || len(o.Command) > 0 {
		return r.NotBegun(failure.Of(mount.ErrBadOption, errors.New("an idmapped mount is a new bind mount: the options must say bind or rbind, and nothing that only mount(8) does")))
	}
	space, err := ids.Namespace(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return r.NotBegun(ladder.Ended(ctx))
		}
		return r.NotBegun(failure.Of(mount.ErrNoIDMap, noNamespaceError(r.Source, err)))
	}
	return m.config.withFacts(m.nativeMount(ctx, r, o, space))
}

// ProbeIDMap returns nil if [Mounter.BindIDMapped] is expected to work for
// the file system at path. Otherwise it returns the *[IDMapError] of that call.
// It tries on a copy of the mount that no other process sees.
func (m *Mounter) ProbeIDMap(ctx context.Context, path string) error {
	ids := []IDMapping{{HostID: 0, Size: 1}}
	space, err := IDMap{UIDs: ids, GIDs: ids}.Namespace(ctx)
	if err != nil {
		return noNamespaceError(path, err)
	}
	return m.doOwning(ctx, callKey{target: "probe " + path}, space, func() error {
		tree, err := m.api.OpenTree(unix.AT_FDCWD, path, false)
		if err != nil {
			return NewIDMapError(path, err)
		}
		defer unix.Close(tree)
		if err := m.api.MountSetattr(tree, false, idMapped(space)); err != nil {
			return NewIDMapError(path, err)
		}
		return nil
	})
}

// doOwning runs a call that uses space (nil: none) and may outlive the wait for
// it: space is closed when the call has returned, or was never begun.
func (m *Mounter) doOwning(ctx context.Context, key callKey, space *os.File, call func() error) error {
	err := m.calls.Do(ctx, key, func() error {
		defer space.Close()
		return call()
	})
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && !abandoned.Started {
		space.Close()
	}
	return err
}

func idMapped(space *os.File) unix.MountAttr {
	return unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(space.Fd())}
}

// bindIDMapped is bind for a mount with another view of its owners. Nothing
// stands in for a call that this kernel lacks.
func (n *native) bindIDMapped(ctx context.Context) error {
	if err := n.checkBindOptions(); err != nil {
		return err
	}
	err := n.bindOutOfSight(ctx)
	if _, ok := errors.AsType[*lackingError](err); ok {
		return failure.Of(mount.ErrNoIDMap, NewIDMapError(n.request.Source, err))
	}
	return err
}

// mapIDs changes the owners that a copy shows which no process sees yet.
func (n *native) mapIDs(tree int) error {
	if n.idMap == nil {
		return nil
	}
	if err := n.api.MountSetattr(tree, n.options.Recursive, idMapped(n.idMap)); err != nil {
		return failure.Of(mount.ErrNoIDMap, NewIDMapError(n.request.Source, err))
	}
	return nil
}
