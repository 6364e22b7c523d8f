package nfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/justmade"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// notMade says why the directory of an export could not be made below base. The
// error of the mount that missed it is kept.
func notMade(directory, base string, err, missing error) error {
	next := ""
	switch {
	case errors.Is(err, unix.EROFS):
		next = "export " + base + " writable to this node, or make the directory on the server"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		next = "on the server root may be another user (root_squash): let that user write in the directory above, export " + base +
			" to this node with no_root_squash, or make the directory on the server"
	}
	what := fmt.Sprintf("the directory %s seems to be missing (the mount said: %v), and making it below %s failed: %v", directory, missing, base, err)
	return &volume.Failure{Cause: ErrNotMade, Subject: directory, What: what, Next: next, Err: errors.Join(err, missing)}
}

// directoryRequest is a directory that shall be made if it is missing.
type directoryRequest struct {
	base export
	path string // relative to base
	mode uint32
}

// directoryFor returns the wish for a directory, if a policy allows it.
func (p InlinePolicy) directoryFor(name string, e export, mode uint32) (*directoryRequest, error) {
	entry, _ := p.forServer(e.server)
	wanted, base := path.Clean(e.path), ""
	for _, dir := range entry.MakeBelow {
		if dir = path.Clean(dir); pathin.Strictly(dir, wanted) && len(dir) > len(base) {
			base = dir
		}
	}
	if base == "" {
		next := fmt.Sprintf("remove the annotation, or have the node's administrator add {server: %q, makeBelow: [%q]}", e.server, path.Dir(wanted))
		if entry.Server != "" {
			next = fmt.Sprintf("remove the annotation, or have the node's administrator add %q to that entry's makeBelow", path.Dir(wanted))
		}
		return nil, volume.NothingDone(notAllowed(fmt.Sprintf("making the directory %q", wanted), name, e.server, entry.Server, next))
	}
	rest, _ := pathin.Cut(base, wanted)
	return &directoryRequest{base: export{e.server, base}, path: rest, mode: mode}, nil
}

// isMissing reports whether a mount failed as it does where its directory is not
// there or not finished, and left nothing. NFSv3 servers deny access to missing
// directories.
func isMissing(err error) bool {
	return err != nil && !volume.IsUncertain(err) &&
		(errors.Is(err, mount.ErrNoSuchExport) || errors.Is(err, mount.ErrAccessDenied) || errors.Is(err, errUnfinished))
}

var errUnfinished = errors.New("the creation of the directory was interrupted; its mode is not set")

// refuseUnfinished undoes a new mount at dir that seems to show a directory that
// did not get its mode.
func (m *mounter) refuseUnfinished(ctx context.Context, dir string) error {
	if m.directory.mode&0o1777 == unfinished {
		return nil
	}
	found := make(chan fs.FileMode, 1)
	err := new(blockingcall.Group[string]).Do(ctx, dir, func() error {
		info, err := os.Stat(dir)
		if err == nil {
			found <- info.Mode()
		}
		return err
	})
	if err == nil {
		if mode := <-found; mode.Perm() != 0o700 || mode&fs.ModeSticky == 0 {
			return nil
		}
		err = errUnfinished
	}
	if left := podmount.TearDown(ctx, m.Host.GetMounter(), dir, m.plugin.ladder()); left != nil {
		return errors.Join(err, left)
	}
	return volume.NothingDone(err)
}

// makeAndMount makes the directory that a mount has missed, and mounts again. Of
// several volumes with one directory the first makes it.
func (m *mounter) makeAndMount(ctx context.Context, request mount.Request, args volume.MounterArgs, missing error) error {
	unlock, free := m.plugin.making.TryLock(request.Source)
	if !free {
		var err error
		if unlock, err = m.plugin.making.Lock(ctx, request.Source); err != nil {
			return m.notMade(&blockingcall.AbandonedError{Earlier: true, Err: err}, missing)
		}
	}
	defer unlock()
	if !free { // it may be there by now
		if missing = m.mount(ctx, request); !isMissing(missing) {
			return missing
		}
	}
	if args.Progress != nil {
		args.Progress(volume.Progress{Doing: "making the directory " + m.export.String()})
	}
	wish := *m.directory
	options := slices.DeleteFunc(slices.Clone(m.options), func(o string) bool { return o == "ro" })
	err := m.plugin.withExport(ctx, wish.base, options, wish.workName(options), func(ctx context.Context, root *os.File) error {
		return makeBelow(root, wish.path, wish.mode)
	})
	if err != nil {
		return m.notMade(err, missing)
	}
	// It may be another directory by now; only ours gets the mode.
	_, err = m.plugin.setUp(ctx, m.export, request, m.isMounted)
	return err
}

// notMade is marked unless a mount of the agent's own may be left.
func (m *mounter) notMade(err, missing error) error {
	failed := notMade(m.export.String(), m.directory.base.String(), err, missing)
	if leftWork(err) {
		return failed
	}
	return volume.NothingDone(failed)
}

// workName is the same for all that can share one mount of the agent's own.
func (w directoryRequest) workName(options []string) string {
	sum := sha256.Sum256([]byte(w.base.normal().String() + "\n" + strings.Join(options, ",")))
	return "make-" + hex.EncodeToString(sum[:16])
}

// modeBits are those that a directory's mode has.
const modeBits = 0o7777

// errRaced says that another process has made or removed the same at the same time.
var errRaced = errors.New("made or removed meanwhile")

// pathError says which element of a path could not be made, or is no directory.
type pathError struct {
	element string // from the root
	reason  string
	err     error
}

func (e *pathError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("%q %s", e.element, e.reason)
	}
	return fmt.Sprintf("%q %s: %v", e.element, e.reason, e.err)
}

func (e *pathError) Unwrap() error { return e.err }

// unfinished is the mode in which a directory is made: a directory that only its
// owner may use needs no sticky bit, so no program makes one like that on
// purpose. A call that finds it, empty and the agent's own, gives it its mode.
const unfinished = unix.S_ISVTX | 0o700

// maker makes directories of one mode.
type maker struct {
	mode  uint32
	mkdir func(dir int, name string, mode uint32) error
	chmod func(fd int, mode uint32) error
}

func newMaker(mode uint32) maker {
	return maker{mode: mode, mkdir: unix.Mkdirat, chmod: func(fd int, mode uint32) error {
		// A descriptor with O_PATH knows no fchmod.
		return unix.Fchmodat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), mode, 0)
	}}
}

// makeBelow makes the missing directories of a clean, relative path beneath root
// with this mode, whatever the umask is; an inherited set-group-id bit stays.
// Existing ones are left as they are, unless [unfinished]: the mode comes last.
// No link is followed, and no other file system entered. It is idempotent, and
// safe where others make the same. The error is a *pathError.
func makeBelow(root *os.File, path string, mode uint32) error {
	return newMaker(mode).below(root, path)
}

func (m maker) below(root *os.File, path string) error {
	defer runtime.KeepAlive(root)
	return m.elements(int(root.Fd()), strings.Split(path, "/"))
}

func (m maker) elements(root int, elements []string) error {
	top, err := lookAt(root)
	if err != nil {
		return &pathError{".", "cannot be read", err}
	}
	dir := root
	for i, name := range elements {
		next, err := m.element(dir, name, top)
		if dir != root {
			unix.Close(dir)
		}
		if failed, ok := errors.AsType[*pathError](err); ok {
			failed.element = strings.Join(elements[:i+1], "/")
		}
		if err != nil {
			return err
		}
		dir = next
	}
	if dir != root {
		unix.Close(dir)
	}
	return nil
}

// element opens a directory in dir, and makes it first if it is missing.
func (m maker) element(dir int, name string, top unix.Statx_t) (fd int, err error) {
	err = retry.Patiently(errRaced, func() error {
		fd, err = m.tryElement(dir, name, top)
		return err
	})
	if errors.Is(err, errRaced) {
		return -1, &pathError{reason: "goes away as soon as it is made", err: unix.EAGAIN}
	}
	return fd, err
}

func (m maker) tryElement(dir int, name string, top unix.Statx_t) (int, error) {
	fd, err := openDirElement(dir, name, top)
	if err == nil {
		return m.finished(dir, fd)
	}
	if !errors.Is(err, unix.ENOENT) {
		return -1, err
	}
	switch err := eintr.Do(func() error { return m.mkdir(dir, name, unfinished) }); {
	case errors.Is(err, unix.EEXIST):
		return -1, errRaced
	case err != nil:
		return -1, &pathError{reason: "cannot be made", err: err}
	}
	fd, err = openDirElement(dir, name, top)
	if errors.Is(err, unix.ENOENT) {
		return -1, errRaced
	}
	if err != nil {
		return -1, err
	}
	if err := m.finish(dir, fd); err != nil {
		unix.Close(fd)
		if errors.Is(err, justmade.ErrOther) {
			return -1, err // and not ours to remove
		}
		return -1, errors.Join(err, removeMade(dir, name))
	}
	return fd, nil
}

// finished finishes a directory that exists, if its making was interrupted, and
// returns it.
func (m maker) finished(dir, fd int) (int, error) {
	st, err := lookAt(fd)
	if err != nil {
		err = &pathError{reason: "cannot be read", err: err}
	} else if uint32(st.Mode)&0o1777 == unfinished && m.mode&0o1777 != unfinished {
		err = m.finish(dir, fd)
	}
	if errors.Is(err, justmade.ErrOther) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EROFS) {
		return fd, nil // it was there before
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openDirElement opens a directory, which must be of the same file system as top,
// and no link.
func openDirElement(dir int, name string, top unix.Statx_t) (int, error) {
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return -1, &pathError{reason: "cannot be opened", err: err}
	}
	st, err := lookAt(fd)
	if err == nil {
		err = fits(st, top)
	}
	if err != nil {
		unix.Close(fd)
		return -1, &pathError{reason: "cannot be used", err: err}
	}
	return fd, nil
}

var (
	errIsLink     = errors.New("it is a symbolic link, which is not followed")
	errIsNoDir    = errors.New("it is no directory")
	errOtherMount = errors.New("another file system begins there, which is not entered; name a directory of that under makeBelow")
)

func fits(st, top unix.Statx_t) error {
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK:
		return errIsLink
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return errIsNoDir
	case st.Dev_major != top.Dev_major || st.Dev_minor != top.Dev_minor || st.Attributes&unix.STATX_ATTR_AUTOMOUNT != 0:
		return errOtherMount
	}
	return nil
}

func lookAt(fd int) (st unix.Statx_t, err error) {
	const flags = unix.AT_EMPTY_PATH | unix.AT_NO_AUTOMOUNT
	err = eintr.Do(func() error { return unix.Statx(fd, "", flags, unix.STATX_TYPE|unix.STATX_MODE, &st) })
	return st, err
}

// finish gives a directory of parent its mode. mkdir(2) never sets the
// set-group-id bit, and a default ACL or umask takes bits away. A user who may
// write in parent may have put another directory in its place, which keeps its
// own mode: unless it looks like a new one of ours, the error matches
// [justmade.ErrOther].
func (m maker) finish(parent, fd int) error {
	st, err := lookAt(fd)
	if err != nil {
		return &pathError{reason: "was made, but cannot be read", err: err}
	}
	wanted := m.mode | uint32(st.Mode)&unix.S_ISGID
	if uint32(st.Mode)&modeBits == wanted {
		return nil
	}
	if err := justmade.Check(parent, fd, unfinished); err != nil {
		if st, again := lookAt(fd); again == nil && uint32(st.Mode)&modeBits == wanted {
			return nil // another process made the same
		}
		return &pathError{reason: "was made, but does not get its mode", err: err}
	}
	if st.Mode&unix.S_ISVTX == 0 {
		return &pathError{reason: fmt.Sprintf("was made with mode %04o, and the server gave it %04o", unfinished, st.Mode&modeBits), err: unix.EOPNOTSUPP}
	}
	if err := eintr.Do(func() error { return m.chmod(fd, wanted) }); err != nil {
		return &pathError{reason: fmt.Sprintf("was made with mode %04o, which cannot be changed", st.Mode&modeBits), err: err}
	}
	if st, err = lookAt(fd); err == nil && uint32(st.Mode)&modeBits != wanted {
		err = fmt.Errorf("the server makes mode %04o of it: %w", st.Mode&modeBits, unix.EPERM)
	}
	if err != nil {
		return &pathError{reason: "does not get its mode", err: err}
	}
	return nil
}

// removeMade removes a directory that is not as it should be: the next try would
// take it for another owner's.
func removeMade(dir int, name string) error {
	return eintr.Do(func() error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) })
}
