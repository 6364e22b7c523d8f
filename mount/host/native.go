package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
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
	n := &native{api: m.api, undo: m.sys.unmount, table: m.table, config: &m.config, request: r, options: o, idMap: idMap}
	err := m.doOwning(ctx, mountKey(r.Target), idMap, func() error {
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
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && abandoned.Started && n.gate.take() {
		return mount.Certain(failure)
	}
	return failure
}

// doOwning runs a call that uses space (nil: none) and may outlive the wait for
// it: space is closed when the call has returned, or was never begun.
func (m *Mounter) doOwning(ctx context.Context, key callKey, space *os.File, call func() error) error {
	if space == nil {
		return m.calls.Do(ctx, key, call)
	}
	err := m.calls.Do(ctx, key, func() error {
		defer space.Close()
		return call()
	})
	if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && !abandoned.Started {
		space.Close()
	}
	return err
}

// native is one request under way. Its caller, who may have given it up, touches the gate
// alone. What it does with the new mount API is in
// native_*.go; native_legacy.go does the same with mount(2) alone.
type native struct {
	api     mountapi.Calls
	undo    func(path string, flags int) error // umount2(2)
	statx   mounttable.Statx                   // for the target; nil: the kernel's
	table   mount.Table
	gate    gate
	config  *Config
	request mount.Request
	options mountopt.Options
	idMap   *os.File // of an idmapped mount; nil else

	// parent and name are the target: its path, or its name in an open directory. A
	// name that is a mount point can be neither renamed nor replaced.
	parent int
	name   string
	// target is the mount point, opened once, and at what it was then.
	target int
	at     place
	// committed: the gate has been taken.
	committed bool
	open      []int // what close closes
	few       [3]int
}

func (n *native) close() {
	for _, fd := range n.open {
		unix.Close(fd)
	}
}

// keep makes close close a descriptor.
func (n *native) keep(fd int) int {
	if n.open == nil {
		n.open = n.few[:0]
	}
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
func (n *native) openTarget() (err error) {
	n.parent, n.name = unix.AT_FDCWD, filepath.Clean(n.request.Target)
	n.target, n.at, err = n.openNamed()
	if err == nil && n.at.untold {
		return n.openByParent()
	}
	return err
}

// openByParent opens the mount point anew, by way of its parent directory, which stays
// open: it is opened once more after mount(2), and is to be in the same directory then.
func (n *native) openByParent() error {
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
	at, err := n.look(fd)
	if err == nil && at.isLink() {
		err = failure.Of(mount.ErrTargetIsLink, nil)
	}
	return fd, at, err
}

func (n *native) look(target int) (place, error) {
	if n.statx == nil {
		return look(target, "")
	}
	return lookBy(n.statx, target, "")
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

// checkCovered makes sure that the target's name leads to the root of another mount than
// the one that target lies in: a link or directory that took its place before
// the mount does not.
func (n *native) checkCovered() error {
	if n.name == "." || n.name == "/" {
		return nil // "/" cannot be replaced
	}
	now, err := look(n.parent, n.name)
	switch {
	case err != nil:
		return targetError(err)
	case now.isLink():
		return failure.Of(mount.ErrTargetIsLink, nil)
	case now.mount == n.at.mount, !now.root && !now.untold:
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

// filesystem is what the kernel is told of one that is to be mounted.
type filesystem struct {
	fstype, source string
	// data are the file system's own options, in order.
	data []string
}

// mountNew mounts a file system. It may be called again with another one where
// it has failed.
func (n *native) mountNew(ctx context.Context, fs filesystem) error {
	if !n.fits(fs) {
		return n.mountNewByMount2(ctx, fs)
	}
	mount, err := n.create(fs)
	if err == nil {
		n.keep(mount)
		if err = n.refuseTwice(mount); err == nil {
			err = n.attach(ctx, mount)
		}
	}
	if _, ok := errors.AsType[*lackingError](err); ok {
		return n.mountNewByMount2(ctx, fs)
	}
	return err
}

// fits reports whether fsconfig can carry the request. It cannot carry long
// strings; a comma within one is refused by file systems that know only the old
// way, and escaped where the new way wants it plain; and i_version has no word.
func (n *native) fits(fs filesystem) bool {
	if n.options.Set&unix.MS_I_VERSION != 0 || len(fs.source) > mountapi.MaxString {
		return false
	}
	return !slices.ContainsFunc(fs.data, func(option string) bool {
		key, value, _ := strings.Cut(option, "=")
		return len(key) > mountapi.MaxString || len(value) > mountapi.MaxString || strings.Contains(value, ",") && !isLabel(key)
	})
}

// isLabel tells the options that hold a security label: the kernel takes them
// before the file system does, with commas and without the quotes around them.
func isLabel(key string) bool {
	return slices.Contains([]string{"context", "fscontext", "defcontext", "rootcontext", "seclabel"}, key)
}

// interrupted is how often a file system is begun anew after a signal.
const interrupted = 10

// create makes the file system and returns a mount of it that is attached
// nowhere.
func (n *native) create(fs filesystem) (mount int, err error) {
	for range interrupted {
		mount, err = n.createOnce(fs)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return mount, err
}

func (n *native) createOnce(fs filesystem) (mount int, err error) {
	context, err := n.api.Fsopen(fs.fstype)
	if err != nil {
		return -1, lackingOrDenied(&failure.Kernel{Call: callOpen, Err: err})
	}
	defer unix.Close(context)
	c := configuration{n.api, n.request, context}
	if err := c.setString("source", fs.source); err != nil {
		return -1, err
	}
	set, _ := n.options.OfSuper()
	if err := c.setFlags(superWords(set)); err != nil {
		return -1, err
	}
	if err := c.setOptions(fs.data); err != nil {
		return -1, err
	}
	if err := n.api.Create(context); err != nil {
		return -1, c.failed(callCreate, err)
	}
	ofMount, _ := n.options.OfMount()
	mount, err = n.api.Fsmount(context, attributesOf(ofMount))
	if err != nil && ofMount&unix.MS_NOSYMFOLLOW != 0 && errors.Is(err, unix.EINVAL) {
		return -1, &lackingError{err} // before Linux 5.14
	}
	if err != nil {
		return -1, c.failed("fsmount", err)
	}
	return mount, nil
}

// refuseTwice refuses to mount a file system on itself, as mount(2) does: a
// caller that asks again for the same mount learns of it.
func (n *native) refuseTwice(tree int) error {
	if !n.at.root {
		return nil
	}
	made, err := look(tree, "")
	if err == nil && made.device == n.at.device {
		err = failure.Of(mount.ErrBusy, &failure.Kernel{Call: callAttach, Err: unix.EBUSY})
	}
	return err
}

// configuration fills in a file-system context. Its errors are masked: they
// are handed on as they are.
type configuration struct {
	api     mountapi.Calls
	request mount.Request
	context int
}

func (c configuration) setOptions(options []string) error {
	for _, option := range options {
		key, value, hasValue := strings.Cut(option, "=")
		if genericName(key) {
			return c.refused(option, unix.EINVAL) // "ro=nonsense"
		}
		var err error
		switch {
		case !hasValue:
			err = c.setFlag(option)
		case isLabel(key):
			err = c.setString(key, strings.Trim(value, `"`))
		default:
			err = c.setString(key, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c configuration) setFlags(words []string) error {
	for _, word := range words {
		if err := c.setFlag(word); err != nil {
			return err
		}
	}
	return nil
}

func (c configuration) setFlag(key string) error {
	return c.refused(key, c.api.SetFlag(c.context, key))
}

func (c configuration) setString(key, value string) error {
	return c.refused(key+"="+value, c.api.SetString(c.context, key, value))
}

func (c configuration) refused(option string, err error) error {
	if err == nil {
		return nil
	}
	return &optionError{c.request.MaskOption(option), c.failed(callOption, err)}
}

// failed adds what the kernel says about an error.
func (c configuration) failed(call string, err error) error {
	lines := c.api.Log(c.context)
	for i, line := range lines {
		lines[i] = c.request.Mask(line)
	}
	return lacking(&failure.Kernel{Call: call, Lines: lines, Err: err})
}

// genericName reports whether a key is a file-system-independent word.
func genericName(key string) bool {
	_, _, ok := mountopt.GenericFlag(key)
	return ok
}
