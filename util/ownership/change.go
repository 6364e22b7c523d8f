package ownership

import (
	"errors"
	"io/fs"
	"strconv"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/treewalk"
)

// kernel says which of the newer system calls to use. Where the kernel lacks
// one, the older way is taken by itself; a false field forces that in tests.
type kernel struct {
	tree treewalk.Options
	// fchmodat2 (Linux 6.6) changes the mode of an O_PATH descriptor.
	fchmodat2 bool
}

// wanted returns the mode that a file is to have: its own, and more. Setgid was
// meant for the group that a file had, and goes with that: else its maker could
// let others act as a group that was never theirs.
func (g Group) wanted(i treewalk.Info) uint32 {
	mode := i.Mode & 0o7777
	switch {
	case i.IsLink(): // which has none of its own
		return mode
	case g.ReadOnly:
		mode |= 0o440
	default:
		mode |= 0o660
	}
	switch {
	case i.IsDir():
		mode |= unix.S_ISGID | 0o110
	case i.GID != g.ID:
		mode &^= unix.S_ISGID
	}
	return mode
}

// has reports whether a file is as it should be.
func (g Group) has(i treewalk.Info) bool {
	return i.GID == g.ID && i.Mode&0o7777 == g.wanted(i)
}

// keep is the id that leaves an owner as it is, see chown(2).
const keep = ^uintptr(0)

// change is one change of a tree, shared by its workers.
type change struct {
	group        Group
	tree         *treewalk.Tree
	readOnlyTree bool
	noFchmodat2  atomic.Bool

	mu       sync.Mutex
	visitors []*visitor
}

// newVisitor is for another worker of the walk.
func (c *change) newVisitor() treewalk.Visitor {
	v := &visitor{change: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.visitors = append(c.visitors, v)
	return v
}

// done is the number of files that are done.
func (c *change) done() (files int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range c.visitors {
		files += v.done.Load()
	}
	return files
}

// fix changes a file that is open, perhaps as O_PATH, unless it is right.
func (c *change) fix(fd int, i treewalk.Info) error {
	mode := c.group.wanted(i)
	chmod := i.Mode&0o7777 != mode
	if i.GID != c.group.ID {
		if errno := onDescriptor(unix.SYS_FCHOWNAT, fd, keep, uintptr(c.group.ID), unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); errno != 0 {
			return c.failed(opChown, fd, errno)
		}
		// The kernel takes setuid off an executable with that.
		chmod = chmod || mode&unix.S_ISUID != 0 && !i.IsDir()
	}
	if !chmod {
		return nil
	}
	if err := c.chmod(fd, mode); err != nil {
		return c.failed(opChmod, fd, err)
	}
	return nil
}

// chmod is fchmod(2) for a descriptor that may be an O_PATH one.
func (c *change) chmod(fd int, mode uint32) error {
	if !c.noFchmodat2.Load() {
		switch errno := onDescriptor(unix.SYS_FCHMODAT2, fd, uintptr(mode), unix.AT_EMPTY_PATH, 0); errno {
		case 0:
			return nil
		case unix.ENOSYS, unix.EOPNOTSUPP:
			c.noFchmodat2.Store(true)
		case unix.EPERM: // perhaps an older container runtime's seccomp filter
		default:
			return errno
		}
	}
	return eintr.Do(func() error { return unix.Chmod("/proc/self/fd/"+strconv.Itoa(fd), mode) })
}

// onDescriptor is a system call that takes a name relative to a descriptor, on
// the descriptor itself. unix.Fchownat and unix.Fchmodat allocate the empty name.
func onDescriptor(call uintptr, fd int, a, b, c uintptr) unix.Errno {
	var name byte
	for {
		_, _, errno := unix.Syscall6(call, uintptr(fd), uintptr(unsafe.Pointer(&name)), a, b, c, 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// failed is the error for a file that could not be changed; nil for one that no
// process can change. Its path is added by the walk.
func (c *change) failed(op string, fd int, err error) error {
	if errors.Is(err, unix.EPERM) && treewalk.Fixed(fd) || errors.Is(err, unix.EROFS) && !c.readOnlyTree {
		return nil
	}
	return pathError(op, "", err)
}

func pathError(op, path string, err error) error { return &fs.PathError{Op: op, Path: path, Err: err} }
