package removetree

import (
	"context"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

const (
	// maxOpen is how many levels of the tree keep their descriptor.
	maxOpen = 32
	// maxRetries bounds, in each directory, the fight against a process that
	// changes the tree while it is being deleted.
	maxRetries = 1000
)

// walk deletes depth first. Its stack holds the directories from the parent,
// which stays, to the one being emptied.
type walk struct {
	kernel  kernel
	stack   []frame
	buffer  []byte
	mayGoOn func() error // asked before each removal, unless nil
	removed func()       // called after each removal, unless nil
	kept    string       // a name in the first directory that stays; "" is none
}

// frame is one open directory.
type frame struct {
	name string
	// fd is -1 while the directory is too far up the stack to stay open.
	fd int
	id identity
	// pending are the entries that are not yet deleted: directories, and what
	// could not be unlinked at the first try.
	pending []string
	retries int
}

func (w *walk) run(ctx context.Context) error {
	for {
		if err := w.goOn(ctx); err != nil {
			return err
		}
		top := w.top()
		var err error
		switch {
		case len(top.pending) > 0:
			name := top.pending[len(top.pending)-1]
			top.pending = top.pending[:len(top.pending)-1]
			err = w.remove(ctx, name)
		case len(w.stack) == 1:
			return nil
		default:
			err = w.leave()
		}
		if err != nil {
			return err
		}
	}
}

// goOn is asked right before whatever removes something.
func (w *walk) goOn(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if w.mayGoOn != nil {
		return w.mayGoOn()
	}
	return nil
}

// remove deletes an entry of the top directory, or enters it if it is a
// directory. What the entry is shows in how the kernel refuses.
func (w *walk) remove(ctx context.Context, name string) error {
	top := w.top()
	err := w.unlink(top.fd, name, 0)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return w.busy(name, err)
	case errors.Is(err, unix.EACCES) && w.widen():
		return w.again(name)
	case errors.Is(err, unix.EISDIR) || errors.Is(err, unix.EPERM): // POSIX file systems say EPERM for a directory
		return w.enter(ctx, name, err)
	}
	return w.failed("unlinkat", name, err)
}

func (w *walk) enter(ctx context.Context, name string, unlinkErr error) error {
	top := w.top()
	fd, err := w.kernel.openDir(top.fd, name)
	if errors.Is(err, unix.EACCES) {
		fd, err = w.kernel.forceOpenDir(top.fd, name, top.id)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EXDEV):
		return &MountError{Path: joinPath(w.stack, name)}
	case (errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)) && errors.Is(unlinkErr, unix.EPERM):
		return w.failed("unlinkat", name, unlinkErr) // a file that must not be deleted
	case errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP): // no longer a directory
		return w.again(name)
	case err != nil:
		return w.failed("openat", name, err)
	}
	id, err := w.kernel.identify(fd)
	if err != nil {
		unix.Close(fd)
		return w.failed("statx", name, err)
	}
	if !id.sameMount(top.id) {
		unix.Close(fd)
		return &MountError{Path: joinPath(w.stack, name)}
	}
	w.push(frame{name: name, fd: fd, id: id})
	_, err = w.empty(ctx)
	return err
}

// empty unlinks what it can of the top directory and notes the rest. It returns
// how many entries it has found.
func (w *walk) empty(ctx context.Context) (found int, err error) {
	top := w.top()
	if w.buffer == nil { // most of what is removed is missing, or small
		w.buffer = make([]byte, 4<<10)
	}
	var names []string
	for {
		n, err := eintr.Get(func() (int, error) { return unix.ReadDirent(top.fd, w.buffer) })
		if errors.Is(err, unix.ENOENT) || err == nil && n == 0 { // ENOENT: another process has removed it
			return found, nil
		}
		if err != nil {
			return found, w.failed("getdents64", "", err)
		}
		_, _, names = unix.ParseDirent(w.buffer[:n], -1, names[:0])
		found += len(names)
		for _, name := range names {
			if name == w.kept && len(w.stack) == 1 {
				found--
				continue
			}
			if err := w.goOn(ctx); err != nil {
				return found, err
			}
			if err := w.unlink(top.fd, name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
				top.pending = append(top.pending, name)
			}
		}
	}
}

// leave removes the top directory, which is empty as far as we know.
func (w *walk) leave() error {
	child := *w.top()
	if err := w.reopenParent(); err != nil {
		return err
	}
	unix.Close(child.fd)
	w.stack = w.stack[:len(w.stack)-1]
	err := w.unlink(w.top().fd, child.name, unix.AT_REMOVEDIR)
	switch {
	case err == nil || errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return w.busy(child.name, err)
	case errors.Is(err, unix.EACCES) && w.widen(),
		errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST), errors.Is(err, unix.ENOTDIR): // another process added to it or replaced it
		return w.again(child.name)
	}
	return w.failed("unlinkat", child.name, err)
}

// busy says why an entry of the top directory cannot be removed now.
func (w *walk) busy(name string, err error) error {
	where := joinPath(w.stack, name)
	if w.kernel.mayBeMount(w.top().fd, name, w.top().id) {
		return &MountError{Path: where}
	}
	return &OpenError{Path: where, Err: err}
}

func (w *walk) push(f frame) {
	w.stack = append(w.stack, f)
	if far := len(w.stack) - 1 - maxOpen; far > 0 { // never the parent, whose descriptor is the caller's
		unix.Close(w.stack[far].fd)
		w.stack[far].fd = -1
	}
}

// reopenParent opens the directory above the top one again if it was closed.
// The top one may have been moved elsewhere meanwhile, so it looks whether
// ".." is the directory it came from.
func (w *walk) reopenParent() error {
	parent := &w.stack[len(w.stack)-2]
	if parent.fd >= 0 {
		return nil
	}
	fd, err := w.kernel.openDir(w.top().fd, "..")
	if err != nil {
		return w.failed("openat", "..", err)
	}
	id, err := w.kernel.identify(fd)
	if err == nil && id != parent.id {
		err = errors.New("the directory was moved while it was being deleted")
	}
	if err != nil {
		unix.Close(fd)
		return w.failed("openat", "..", err)
	}
	parent.fd = fd
	return nil
}

// widen gives the owner all permissions on the top directory and reports
// whether that made a difference. The parent of the tree is not ours to change.
func (w *walk) widen() bool {
	if len(w.stack) == 1 {
		return false
	}
	fd := w.top().fd
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o700 == 0o700 {
		return false
	}
	return unix.Fchmod(fd, st.Mode&0o7777|0o700) == nil
}

func (w *walk) again(name string) error {
	top := w.top()
	if top.retries++; top.retries > maxRetries {
		return w.failed("remove", name, errors.New("the directory keeps changing while it is being deleted"))
	}
	top.pending = append(top.pending, name)
	return nil
}

func (w *walk) failed(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: joinPath(w.stack, name), Err: err}
}

func (w *walk) top() *frame { return &w.stack[len(w.stack)-1] }

func (w *walk) close() {
	for _, f := range w.stack[1:] {
		if f.fd >= 0 {
			unix.Close(f.fd)
		}
	}
}

func (w *walk) unlink(dirfd int, name string, flags int) error {
	err := eintr.Do(func() error { return w.kernel.remove(dirfd, name, flags) })
	if err == nil && w.removed != nil {
		w.removed()
	}
	return err
}
