package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/internal/fstypes"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/eintr"
)

// gate decides between a mount that is about to be made and a caller that has
// given up: the first wins.
type gate struct{ taken atomic.Bool }

// take reports whether the caller is the first.
func (g *gate) take() bool { return g.taken.CompareAndSwap(false, true) }

// errGivenUp says that a request ended before it took effect.
var errGivenUp = errors.New("given up before the mount was made")

// mountNative carries a request out by system calls, in a goroutine of its own.
// Until the one call that takes effect it only prepares: a mount given up before
// is certain not to be made. With idMap, a user namespace that it closes, it is an
// idmapped bind mount.
func (m *Mounter) mountNative(ctx context.Context, r mount.Request, o mountopt.Options, idMap *os.File) error {
	var g gate
	err := m.doOwning(ctx, mountKey(r.Target), idMap, func() error {
		n := native{api: m.api, undo: m.sys.unmount, statx: unix.Statx, table: m.table, gate: &g, config: m.config, request: r, options: o, idMap: idMap}
		defer n.close()
		return n.run(ctx)
	})
	if err == nil {
		return nil
	}
	if errors.Is(err, errGivenUp) {
		return r.NotBegun(ladder.Ended(ctx))
	}
	failure := m.explain(r, err)
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && abandoned.Started && g.take() {
		return mount.Certain(failure)
	}
	return failure
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

// native is one request under way. What it does with the new mount API is in
// native_*.go; native_legacy.go does the same with mount(2) alone.
type native struct {
	api     mountapi.Calls
	undo    func(path string, flags int) error // umount2(2)
	statx   mounttable.Statx                   // for the target
	table   mount.Table
	gate    *gate
	config  Config
	request mount.Request
	options mountopt.Options
	idMap   *os.File // of an idmapped mount; nil else

	// parent and name are the target: the parent is opened once, and a name
	// that is a mount point can be neither renamed nor replaced.
	parent int
	name   string
	// target is the mount point, opened once, and at what it was then.
	target int
	at     place
	// committed: the gate has been taken.
	committed bool
	open      []int
}

func (n *native) close() {
	for _, fd := range n.open {
		unix.Close(fd)
	}
}

// keep makes close close a descriptor.
func (n *native) keep(fd int) int {
	n.open = append(n.open, fd)
	return fd
}

func (n *native) run(ctx context.Context) error {
	if err := n.openTarget(); err != nil {
		return err
	}
	switch {
	case n.idMap != nil:
		return n.bindIDMapped(ctx)
	case n.options.OnlyPropagation(n.request.FSType, n.request.Source, n.request.Target):
		return n.setPropagation(ctx)
	case n.options.Remount && n.options.Bind:
		return n.remountBind(ctx)
	case n.options.Remount:
		return n.remount(ctx)
	case n.options.Bind:
		return n.bind(ctx)
	case fstypes.Family(n.request.FSType) == "nfs":
		return n.mountNFS(ctx)
	}
	return n.mountNew(ctx, filesystem{n.request.FSType, sourceOf(n.request), n.options.Data})
}

// commit is to be called before the call that takes effect, which is not made
// if it returns an error.
func (n *native) commit(ctx context.Context) error {
	if n.committed {
		return nil // it fell back from one call to another
	}
	if ctx.Err() != nil || !n.gate.take() {
		return errGivenUp
	}
	n.committed = true
	return nil
}

// openTarget opens the mount point and refuses a link. If there is a mount
// already, its root is opened.
func (n *native) openTarget() error {
	target := filepath.Clean(n.request.Target)
	parent, err := openPath(unix.AT_FDCWD, filepath.Dir(target), unix.O_DIRECTORY)
	if err != nil {
		return targetError(err)
	}
	n.parent, n.name = n.keep(parent), filepath.Base(target)
	if target == "/" {
		n.name = "."
	}
	n.target, n.at, err = n.openNamed()
	if err == nil && n.at.untold {
		n.at.root, err = n.isRootOfMount()
	}
	return err
}

// isRootOfMount finds out what statx(2) says since Linux 5.8: the way from the
// parent to the target leads into another mount just where the target is one's
// root. "/" has no parent, and the mount table tells.
func (n *native) isRootOfMount() (bool, error) {
	if n.name == "." {
		e, err := mounttable.MountWithID(n.table, n.at.mount)
		return e.Target == "/", err
	}
	from, err := look(n.parent, "")
	return from.mount != n.at.mount, err
}

// openNamed opens what the target's name leads to now: after a mount, the root of
// the mount.
func (n *native) openNamed() (int, place, error) {
	fd, err := openPath(n.parent, n.name, unix.O_NOFOLLOW)
	if err != nil {
		return -1, place{}, targetError(err)
	}
	n.keep(fd)
	at, err := lookBy(n.statx, fd, "")
	if err == nil && at.isLink() {
		err = failure.Of(mount.ErrTargetIsLink, nil)
	}
	return fd, at, err
}

func targetError(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return failure.Of(mount.ErrNoTarget, err)
	}
	return err
}

// attach shows a mount that was made out of sight at the target: the one call
// that takes effect. Propagation comes after it, since the kernel makes a mount
// below a shared one shared.
func (n *native) attach(ctx context.Context, mount int) error {
	if err := n.commit(ctx); err != nil {
		return err
	}
	if err := n.api.MoveMount(mount, n.target); err != nil {
		return lacking(n.explainAttach(mount, err))
	}
	err := n.checkCovered()
	if err == nil {
		err = n.propagate(mount)
	}
	if err == nil {
		return nil
	}
	made := n.entryOf(mount)
	if undoErr := n.undo(fdPath(mount), unix.MNT_DETACH); undoErr != nil {
		return failure.WithoutUndo(err, undoErr)
	}
	return n.afterDetaching(err, made)
}

// entryOf finds the mount of a descriptor in the mount table; nil if it cannot.
func (n *native) entryOf(mount int) *mount.Entry {
	at, err := look(mount, "")
	if err != nil {
		return nil
	}
	e, err := mounttable.MountWithID(n.table, at.mount)
	if err != nil {
		return nil
	}
	return &e
}

// checkCovered makes sure that the target's name leads to another mount than
// the one that target lies in: a link or directory that took its place before
// the mount does not.
func (n *native) checkCovered() error {
	if n.name == "." {
		return nil // "/" cannot be replaced
	}
	now, err := look(n.parent, n.name)
	switch {
	case err != nil:
		return targetError(err)
	case now.isLink():
		return failure.Of(mount.ErrTargetIsLink, nil)
	case now.mount == n.at.mount:
		return failure.Of(mount.ErrTargetReplaced, nil)
	}
	return nil
}

var errMayLive = errors.New("it is off the mount table, but a process that entered it meanwhile keeps its block device in use")

// afterDetaching is [afterDetaching], save that a bind mount that lives on unseen
// keeps nothing in use that was not before.
func (n *native) afterDetaching(err error, e *mount.Entry) error {
	if n.options.Bind {
		return err
	}
	return afterDetaching(err, e)
}

// afterDetaching is err, which made undo the mount e (nil if it is not known) by
// detaching it. A file system on a block device lives on while a process is in
// it, so the device must not be touched yet.
func afterDetaching(err error, e *mount.Entry) error {
	if e != nil && !mounttable.OnBlockDevice(*e) {
		return err
	}
	return failure.WithoutUndo(err, errMayLive)
}

// openPath opens a path without opening the file.
func openPath(dir int, path string, flags int) (int, error) {
	fd, err := eintr.Get(func() (int, error) { return unix.Openat(dir, path, unix.O_PATH|unix.O_CLOEXEC|flags, 0) })
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// fdPath is the path by which the kernel finds just what a descriptor is.
func fdPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// place says what a descriptor or a name leads to. It never asks a server.
type place struct {
	mode   uint16
	mount  int    // the id of the mount it lies in, as in the mount table
	device uint64 // of the file system, as unix.Mkdev makes it
	root   bool   // it is that mount's root
	// untold: whether it is the root is not known, as before Linux 5.8.
	untold bool
}

func (p place) isLink() bool { return p.mode&unix.S_IFMT == unix.S_IFLNK }

func (p place) isDir() bool { return p.mode&unix.S_IFMT == unix.S_IFDIR }

// look looks at name in dir, which may be a link, or at dir itself.
func look(dir int, name string) (place, error) { return lookBy(unix.Statx, dir, name) }

func lookBy(call mounttable.Statx, dir int, name string) (place, error) {
	const flags = unix.AT_EMPTY_PATH | unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	var st unix.Statx_t
	err := eintr.Do(func() error { return call(dir, name, flags, unix.STATX_TYPE|unix.STATX_MNT_ID, &st) })
	if err != nil {
		return place{}, &os.PathError{Op: "statx", Path: name, Err: err}
	}
	p := place{mode: st.Mode, mount: int(st.Mnt_id), device: unix.Mkdev(st.Dev_major, st.Dev_minor)}
	p.root = st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
	p.untold = st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0
	if st.Mask&unix.STATX_MNT_ID == 0 { // before Linux 5.8
		p.mount, err = mountIDAt(dir, name)
	}
	return p, err
}

// mountIDAt asks /proc for the mount that a name leads to.
func mountIDAt(dir int, name string) (int, error) {
	if name == "" {
		return mounttable.MountIDOf(dir)
	}
	fd, err := openPath(dir, name, unix.O_NOFOLLOW)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return mounttable.MountIDOf(fd)
}

// sourceOf is the source as the mount table shall show it: the type where
// there is none, and of a device the name behind its links, as with mount(8).
func sourceOf(r mount.Request) string {
	if r.Source == "" {
		return r.FSType
	}
	if !strings.HasPrefix(r.Source, "/dev/") {
		return r.Source
	}
	real, err := filepath.EvalSymlinks(r.Source)
	if err != nil {
		return r.Source // the kernel says why it fails
	}
	return mapperName(real)
}

// mapperName is the name of a device-mapper device that people know, as mount(8)
// shows it, for its number; other devices are left alone.
func mapperName(device string) string {
	number, ok := strings.CutPrefix(device, "/dev/dm-")
	if !ok {
		return device
	}
	name, err := os.ReadFile("/sys/block/dm-" + number + "/dm/name")
	if err != nil {
		return device
	}
	return "/dev/mapper/" + strings.TrimSpace(string(name))
}
