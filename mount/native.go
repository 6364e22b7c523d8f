package mount

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/flight"
)

// isNative tells requests that system calls alone carry out.
func isNative(r Request, o parsedOptions) bool {
	if len(o.Command) > 0 {
		return false
	}
	switch r.FSType {
	case "tmpfs", "hugetlbfs":
		return true
	case "", "none", "bind":
		return o.Bind || o.onlyPropagation()
	}
	return o.Bind
}

// gate decides between a mount that is about to be made and a caller that has
// given up: whoever comes first wins.
type gate struct{ taken atomic.Bool }

// take reports whether the caller is the first.
func (g *gate) take() bool { return g.taken.CompareAndSwap(false, true) }

// errGivenUp is seen by nobody: the caller has left when it is returned.
var errGivenUp = errors.New("given up before the mount was made")

// mountNative carries a native request out in a goroutine of its own. If ctx
// ends before the mount system call it will not be made.
func (m *HostMounter) mountNative(ctx context.Context, r Request, o parsedOptions) error {
	var g gate
	err := m.calls.Do(ctx, mountKey(r.Target), func() error {
		n := native{sys: m.sys, gate: &g, request: r, options: o}
		defer n.close()
		return n.run()
	})
	failure := r.wrap(err)
	if abandoned, ok := errors.AsType[*flight.AbandonedError](err); ok && abandoned.Started && g.take() {
		return certain(failure)
	}
	return failure
}

// certain returns the *Error err with Uncertain taken back.
func certain(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		e.Uncertain = false
	}
	return err
}

// native is one native mount under way.
type native struct {
	sys     calls
	gate    *gate
	request Request
	options parsedOptions
	// parent and name are the target: the parent is opened once, and a name
	// that is a mount point can be neither renamed nor replaced.
	parent *os.File
	name   string
	open   []*os.File
}

func (n *native) close() {
	for _, f := range n.open {
		f.Close()
	}
}

func (n *native) run() error {
	target, err := n.openTarget()
	if err != nil {
		return err
	}
	switch {
	case n.options.onlyPropagation():
		return n.setPropagation(target)
	case n.options.Remount:
		return n.remount(target)
	case n.options.Bind:
		return n.bind(target)
	}
	return n.mountNew(target)
}

// openTarget opens the mount point and refuses a link. What is mounted there
// already is what is opened.
func (n *native) openTarget() (*os.File, error) {
	target := filepath.Clean(n.request.Target)
	parent, err := openPath(unix.AT_FDCWD, filepath.Dir(target), unix.O_DIRECTORY)
	if err != nil {
		return nil, targetError(err)
	}
	n.open = append(n.open, parent)
	n.parent, n.name = parent, filepath.Base(target)
	if target == "/" {
		n.name = "."
	}
	return n.reopenTarget()
}

// reopenTarget opens the target again: after a mount, the root of what was
// mounted.
func (n *native) reopenTarget() (*os.File, error) {
	f, err := openPath(int(n.parent.Fd()), n.name, unix.O_NOFOLLOW)
	if err != nil {
		return nil, targetError(err)
	}
	n.open = append(n.open, f)
	return f, refuseLink(f)
}

func targetError(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return &causedError{ErrNoTarget, err}
	}
	return err
}

func refuseLink(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(f.Fd()), "", &st, unix.AT_EMPTY_PATH|unix.AT_NO_AUTOMOUNT); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return &causedError{ErrTargetIsLink, nil}
	}
	return nil
}

// openPath opens a path without opening what is there.
func openPath(dir int, path string, flags int) (*os.File, error) {
	fd, err := unix.Openat(dir, path, unix.O_PATH|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// fdPath is the path by which the kernel finds just what f is.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

func (n *native) setPropagation(target *os.File) error {
	if !n.gate.take() {
		return errGivenUp
	}
	err := n.propagate(target)
	if errors.Is(err, unix.EINVAL) && !isMountRoot(target) {
		return &causedError{ErrNotMounted, err}
	}
	return err
}

func (n *native) propagate(f *os.File) error {
	for _, flag := range n.options.Propagation {
		if err := n.sys.mount("", fdPath(f), "", flag, ""); err != nil {
			return fmt.Errorf("set the propagation: %w", err)
		}
	}
	return nil
}

// remount changes the options of what is mounted at the target, and keeps
// those that are not mentioned.
func (n *native) remount(target *os.File) error {
	current, err := flagsOf(target)
	if err != nil {
		return err
	}
	flags := unix.MS_REMOUNT | n.options.apply(current)
	if n.options.Bind {
		if err := n.checkBindOptions(); err != nil {
			return err
		}
		flags |= unix.MS_BIND
	}
	if !n.gate.take() {
		return errGivenUp
	}
	err = n.sys.mount("", fdPath(target), "", flags, strings.Join(n.options.Data, ","))
	if errors.Is(err, unix.EINVAL) && !isMountRoot(target) {
		return &causedError{ErrNotMounted, err}
	}
	if err != nil {
		return n.explain(fmt.Errorf("remount: %w", err))
	}
	return n.propagate(target)
}

// checkBindOptions refuses what a bind mount cannot have of its own; the
// kernel would ignore it.
func (n *native) checkBindOptions() error {
	if data := n.options.Data; len(data) > 0 {
		return &causedError{ErrBadOption, fmt.Errorf("%s of a file system cannot be set by a bind mount", optionCount(len(data)))}
	}
	if n.options.Set&^(perMountFlags|unix.MS_SILENT) != 0 {
		return &causedError{ErrBadOption, errors.New("sync, dirsync, mand, lazytime and iversion belong to the file system and cannot be set by a bind mount")}
	}
	return nil
}

// optionCount counts rather than names: an option may be sensitive.
func optionCount(n int) string {
	if n == 1 {
		return "one option"
	}
	return fmt.Sprintf("%d options", n)
}

func (n *native) bind(target *os.File) error {
	if err := n.checkBindOptions(); err != nil {
		return err
	}
	source, err := openPath(unix.AT_FDCWD, n.request.Source, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return &causedError{ErrNoSource, err}
	}
	if err != nil {
		return err
	}
	n.open = append(n.open, source)
	flags := uintptr(unix.MS_BIND)
	if n.options.Recursive {
		flags |= unix.MS_REC
	}
	if !n.gate.take() {
		return errGivenUp
	}
	err = n.sys.mount(fdPath(source), fdPath(target), "", flags, "")
	if errors.Is(err, unix.ENOTDIR) {
		return &causedError{ErrKindMismatch, err}
	}
	if err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return n.orUndo(target, n.finishBind)
}

// finishBind gives the new bind mount its own options.
func (n *native) finishBind(mounted *os.File) error {
	if n.options.Set&perMountFlags != 0 || n.options.Clear&perMountFlags != 0 {
		current, err := flagsOf(mounted)
		if err != nil {
			return err
		}
		flags := unix.MS_REMOUNT | unix.MS_BIND | n.options.apply(current)
		if err := n.sys.mount("", fdPath(mounted), "", flags, ""); err != nil {
			return fmt.Errorf("apply the options of the bind mount: %w", err)
		}
	}
	return n.propagate(mounted)
}

// mountNew mounts a tmpfs or hugetlbfs.
func (n *native) mountNew(target *os.File) error {
	if !n.gate.take() {
		return errGivenUp
	}
	source := n.request.Source
	if source == "" {
		source = n.request.FSType
	}
	err := n.sys.mount(source, fdPath(target), n.request.FSType, n.options.Set, strings.Join(n.options.Data, ","))
	if err != nil {
		return n.explain(err)
	}
	return n.orUndo(target, n.propagate)
}

// explain adds what an errno means for these file systems.
func (n *native) explain(err error) error {
	if errors.Is(err, unix.EINVAL) && len(n.options.Data) > 0 {
		return &causedError{ErrBadOption, err}
	}
	return err
}

// orUndo does finish to the mount just made on target, and unmounts it again if
// that fails or if the mount is not where it was asked for.
func (n *native) orUndo(target *os.File, finish func(mounted *os.File) error) error {
	mounted, err := n.reopenTarget()
	if err == nil {
		err = checkCovers(mounted, target)
	}
	if err == nil {
		err = finish(mounted)
	}
	if err == nil {
		return nil
	}
	if undoErr := n.undo(target); undoErr != nil {
		return &halfDoneError{err, undoErr}
	}
	return err
}

// checkCovers makes sure that mounted is another mount than target lies in: a
// directory that took the target's place before the mount is not.
func checkCovers(mounted, target *os.File) error {
	id, err := mountID(mounted)
	if err != nil {
		return err
	}
	below, err := mountID(target)
	if err == nil && id == below {
		err = &causedError{ErrTargetReplaced, nil}
	}
	return err
}

// undo unmounts what was mounted on target, wherever that is by now.
func (n *native) undo(target *os.File) error {
	path, err := os.Readlink(fdPath(target))
	if err != nil {
		return err
	}
	return n.sys.unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
}

// halfDoneError is a mount that failed after it was made and could not be
// undone.
type halfDoneError struct{ err, undoErr error }

func (e *halfDoneError) Error() string {
	return fmt.Sprintf("%v; and undoing the mount failed: %v", e.err, e.undoErr)
}

func (e *halfDoneError) Unwrap() error { return e.err }

// flagsOf returns the flags of the mount that f lies in, from the mount table:
// statfs(2) would ask a server.
func flagsOf(f *os.File) (uintptr, error) {
	id, err := mountID(f)
	if err != nil {
		return 0, err
	}
	entries, err := kernelTable{}.All()
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if e.ID == id {
			return flagsShown(e.Options), nil
		}
	}
	return 0, fmt.Errorf("mount %d is not in the mount table", id)
}

// isMountRoot reports whether f is the root of a mount; what it cannot find out
// counts as one.
func isMountRoot(f *os.File) bool {
	var st unix.Statx_t
	err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &st)
	if err != nil || st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return true
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0
}

func mountID(f *os.File) (int, error) {
	info, err := os.Open(fmt.Sprintf("/proc/self/fdinfo/%d", f.Fd()))
	if err != nil {
		return 0, err
	}
	defer info.Close()
	lines := bufio.NewScanner(info)
	for lines.Scan() {
		if id, ok := strings.CutPrefix(lines.Text(), "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, errors.Join(errors.New("the kernel does not show the mount of a descriptor"), lines.Err())
}
