//go:build linux

package subpath

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// kernelTries is how often the kernel is asked before we walk ourselves. It gives
// up with EAGAIN when anything on the machine was renamed or mounted while it
// followed a "..". That is about one call in fifty next to a process that only
// renames. On a busy machine it is any number of calls in a row for a path with
// many links. The walk needs the machine's rest for nothing.
const kernelTries = 32

// resolve opens a place with O_PATH. The errors are as in [Open].
func (k kernel) resolve(at place) (int, error) {
	if k.openat2 == nil {
		return k.walkTo(at)
	}
	for range kernelTries {
		fd, err := k.openBeneath(at)
		switch {
		case err == nil:
			return fd, nil
		case errors.Is(err, unix.EAGAIN):
			continue
		case errors.Is(err, unix.ENOENT):
			return -1, at.failed("openat2", err)
		case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENOTDIR):
			return -1, k.explain(at, err)
		}
		// ELOOP: the kernel begins anew where something was renamed meanwhile, and
		// counts the links of both ways. Or one was magic, which the walk refuses too.
		// ENOSYS: before Linux 5.6. EPERM: the filter of an older container
		// runtime. EACCES: perhaps only fs.protected_symlinks, which keeps
		// others' links in a directory like /tmp from being followed; as the
		// kubelet we follow them: none can mislead us.
		return k.walkTo(at)
	}
	return k.walkTo(at)
}

// openBeneath opens a directory first of all, since that mounts an automount
// that the path ends at.
func (k kernel) openBeneath(at place) (int, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_DIRECTORY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	}
	open := func() (int, error) { return k.openat2(at.fd, at.path, &how) }
	fd, err := eintr.Get(open)
	if errors.Is(err, unix.ENOTDIR) {
		how.Flags &^= unix.O_DIRECTORY
		return eintr.Get(open)
	}
	return fd, err
}

// explain finds which element the kernel refused, by another walk. What it finds
// may have changed; it does not change the refusal.
func (k kernel) explain(p place, refusal error) error {
	fd, err := k.walkTo(p)
	if err == nil {
		unix.Close(fd)
	}
	if escape, ok := errors.AsType[*EscapeError](err); ok && errors.Is(refusal, unix.EXDEV) {
		return escape
	}
	if file, ok := errors.AsType[*NotDirectoryError](err); ok && errors.Is(refusal, unix.ENOTDIR) {
		return file
	}
	if errors.Is(refusal, unix.EXDEV) {
		return &EscapeError{Volume: p.volume, Path: p.path}
	}
	return &NotDirectoryError{Volume: p.volume, Path: p.path}
}
