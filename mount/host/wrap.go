package host

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/mount/table"
)

// Wrap gives a mounter of another module, such as mount-utils' own, what this module
// relies on. Call it once for a mounter, where the program gets it: all callers of the
// result share one mount table, and one call at a time for each target.
//
//   - Contexts. Mount and Unmount of m run in a goroutine of their own. If ctx ends
//     first, the error is Uncertain, and the call goes on. If ctx has ended before,
//     nothing is begun.
//   - The kernel's mount table, kept in memory ([table.Kernel]).
//   - The ladder of [Mounter.UnmountContext]. Its normal rung is m's Unmount. Its forced
//     and lazy rungs are umount2(2).
//
// What m has of these stays as it is:
//
//   - If m is a [mount.ContextMounter], it mounts and unmounts by its own methods.
//   - If m has a method Table() mount.Table, that is the table. Without contexts it then
//     has the normal rung only: its mounts may be none of this process's.
//   - If m has both, the result is m. For nil it is nil.
//
// Else m must act on the mount namespace of this process. A source by descriptor
// ([mount.Request].Source) reaches m with the flag that keeps mount(8) from following it.
//
// The result's other methods are m's. It is a mount-utils MounterForceUnmounter, too.
// Its method Unwrap() mount.Interface returns m. It is safe for concurrent use if m is.
// The logger gets a warning if an unmount may have lost data; it may be nil.
func Wrap(m mount.Interface, logger *slog.Logger) mount.ContextMounter {
	if m == nil {
		return nil
	}
	in, hasContexts := m.(mount.ContextMounter)
	own, hasTable := m.(table.Tabler)
	switch {
	case hasContexts && hasTable:
		return in
	case hasContexts:
		return &wrapped{m, in, mounttable.New(statmount.Host{})}
	}
	f := &foreign{of: m, engine: New(Config{Logger: logger}), ladder: !hasTable}
	if hasTable {
		return &wrapped{m, f, own.Table()}
	}
	return &wrapped{m, f, f.engine.table}
}

// inContext is what [mount.ContextMounter] adds to a mounter.
type inContext interface {
	MountContext(ctx context.Context, request mount.Request) error
	UnmountContext(ctx context.Context, target string, options mount.UnmountOptions) (mount.Rung, error)
}

// wrapped is a mounter with what it lacked.
type wrapped struct {
	mount.Interface
	inContext
	mounts mount.Table
}

var (
	_ mount.ContextMounter           = (*wrapped)(nil)
	_ table.Tabler                   = (*wrapped)(nil)
	_ k8smount.MounterForceUnmounter = (*wrapped)(nil)
)

// Table implements [table.Tabler].
func (w *wrapped) Table() mount.Table { return w.mounts }

// Unwrap returns the mounter that was wrapped.
func (w *wrapped) Unwrap() mount.Interface { return w.Interface }

// UnmountWithForce is [Mounter.UnmountWithForce].
func (w *wrapped) UnmountWithForce(target string, timeout time.Duration) error {
	_, err := w.UnmountContext(context.Background(), target, mount.UnmountOptions{ForceAfter: max(timeout, time.Millisecond)})
	return err
}

// foreign mounts and unmounts by a mounter that knows no context.
type foreign struct {
	of     mount.Interface
	engine *Mounter // its calls, its ladder and its table
	ladder bool     // of acts on the mounts of this process
}

// MountContext implements [mount.ContextMounter].
func (f *foreign) MountContext(ctx context.Context, r mount.Request) error {
	if err := r.Check(); err != nil {
		return r.NotBegun(err)
	}
	return r.Failed(f.engine.calls.Do(ctx, mountKey(r.Target), func() error {
		if mountopt.IsDescriptor(r.Source) {
			return f.of.MountSensitiveWithoutSystemdWithMountFlags(r.Source, r.Target, r.FSType, r.Options, r.Sensitive, []string{mountopt.NoCanonicalize})
		}
		return f.of.MountSensitive(r.Source, r.Target, r.FSType, r.Options, r.Sensitive)
	}))
}

// UnmountContext implements [mount.ContextMounter].
func (f *foreign) UnmountContext(ctx context.Context, target string, options mount.UnmountOptions) (mount.Rung, error) {
	if !f.ladder {
		options = mount.UnmountOptions{}
	}
	return f.engine.unmount(ctx, target, options, f)
}

// unmount is the normal rung for the mount that u has found. A path without a mount is
// the mounter's to judge, but not once that mount has gone.
func (f *foreign) unmount(u *hostUnmount, g *gate, gone func() (bool, error)) error {
	if f.ladder {
		if gone, err := gone(); gone || err != nil {
			return err
		}
	}
	if !g.take() {
		return errGivenUp
	}
	return final(f.of.Unmount(u.target))
}

// final marks, for the ladder, an error of another mounter that no rung can solve.
func final(err error) error {
	if _, ok := errors.AsType[unix.Errno](err); ok || err == nil {
		return err
	}
	switch cause := mount.CauseOf(err); cause {
	case mount.ErrNotMounted, mount.ErrNotPermitted, mount.ErrNoTarget:
		return failure.Of(cause, err)
	}
	return err
}
