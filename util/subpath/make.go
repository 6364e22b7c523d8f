//go:build unix

package subpath

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/retry"
)

const (
	modeBits    = 0o7777
	inheritable = unix.S_ISGID
	pointMode   = 0o755
	fileMode    = 0o644
)

// maker makes the missing directories of a place.
type maker struct {
	kernel kernel
	at     place
	// mode is the mode of directories, as far as bits says.
	mode, bits uint32
	// file says that the last element becomes a file.
	file bool
}

func (k kernel) openOrMake(ctx context.Context, root *os.File, p string) (*os.File, error) {
	p, err := clean(p)
	if err != nil {
		return nil, err
	}
	defer runtime.KeepAlive(root)
	at := place{fd: int(root.Fd()), volume: root.Name(), path: p}
	st, err := stat(at.fd)
	if err != nil {
		return nil, at.failed("fstat", err)
	}
	m := maker{kernel: k, at: at, mode: uint32(st.Mode) & modeBits, bits: modeBits}
	fd, err := m.run(ctx)
	if err != nil {
		return nil, err
	}
	return newFile(fd, root, p), nil
}

func (k kernel) makePoint(ctx context.Context, root *os.File, p string, dir bool) error {
	p, err := clean(p)
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(root)
	at := place{fd: int(root.Fd()), volume: root.Name(), path: p}
	m := maker{kernel: k, at: at, mode: pointMode, bits: modeBits &^ inheritable, file: !dir}
	fd, err := m.run(ctx)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	st, err := stat(fd)
	if err != nil {
		return at.failed("fstat", err)
	}
	if isDir(st) != dir {
		return &KindError{Volume: at.volume, Path: p, Dir: dir}
	}
	return nil
}

// run opens the place, and makes it if it is missing.
func (m *maker) run(ctx context.Context) (fd int, err error) {
	fd, err = m.kernel.resolve(m.at)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	m.kernel.withoutUmask(func() { fd, err = m.makeMissing(ctx) })
	return fd, err
}

// makeMissing starts again whenever another process has made or exchanged
// something at the same time.
func (m *maker) makeMissing(ctx context.Context) (fd int, err error) {
	err = retry.Do(ctx, errChanged, func() (err error) {
		fd, err = m.tryMissing()
		return err
	})
	if errors.Is(err, errChanged) {
		err = &BusyError{Volume: m.at.volume, Path: m.at.path, Err: context.Cause(ctx)}
	}
	return fd, err
}

func (m *maker) tryMissing() (int, error) {
	fd, err := m.kernel.resolve(m.at)
	if !errors.Is(err, unix.ENOENT) {
		return fd, err
	}
	if st, failure := stat(m.at.fd); failure == nil && st.Nlink == 0 {
		return -1, err // the root was removed: nothing can be made in it any more
	}
	above, missing, err := m.nearest()
	if err != nil {
		return -1, err
	}
	return m.makeBelow(above, missing)
}

// errChanged says that something is no longer what it was a moment ago.
var errChanged = errors.New("changed meanwhile")

// nearest opens the longest part of the path that exists, and returns the
// elements that are missing beneath it.
func (m *maker) nearest() (fd int, missing []string, err error) {
	elements := strings.Split(m.at.path, "/")
	for n := len(elements) - 1; n >= 0; n-- {
		part := m.at
		part.path = "."
		if n > 0 {
			part.path = strings.Join(elements[:n], "/")
		}
		fd, err := m.kernel.resolve(part)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return -1, nil, err
		}
		return fd, elements[n:], nil
	}
	return -1, nil, m.at.failed("openat", unix.ENOENT) // not even the root is there any more
}

// makeBelow makes the elements one beneath the other, and closes dir.
func (m *maker) makeBelow(dir int, elements []string) (int, error) {
	for i, name := range elements {
		fd, err := m.makeOne(dir, name, m.file && i == len(elements)-1)
		if errors.Is(err, unix.EEXIST) {
			err = m.inTheWay(dir, name, len(elements)-1-i)
		} else if err != nil {
			err = m.refused(dir, err)
		}
		unix.Close(dir)
		if err != nil {
			return -1, err
		}
		dir = fd
	}
	return dir, nil
}

// makeOne makes an entry of dir and opens it. What it opens may already be
// something else, but never what a link leads to.
func (m *maker) makeOne(dir int, name string, file bool) (int, error) {
	if file {
		return eintr.Get(func() (int, error) {
			return unix.Openat(dir, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, fileMode)
		})
	}
	if err := eintr.Do(func() error { return unix.Mkdirat(dir, name, m.mode) }); err != nil {
		return -1, err
	}
	made, err := m.kernel.opener.open(dir, name)
	if err == nil && !made.dir {
		made.close()
		err = errChanged
	}
	if err != nil {
		return -1, errChanged
	}
	if err := m.setMode(made.fd); err != nil {
		unix.Close(made.fd)
		return -1, err
	}
	return made.fd, nil
}

// inTheWay tells a link to nothing from what another process has just made. Below
// it, so many elements of the path follow.
func (m *maker) inTheWay(dir int, name string, follow int) error {
	there, err := m.kernel.opener.open(dir, name)
	if err != nil {
		return errChanged
	}
	defer there.close()
	if !there.link {
		return errChanged
	}
	part := m.at
	elements := strings.Split(part.path, "/")
	part.path = strings.Join(elements[:len(elements)-follow], "/")
	if fd, err := m.kernel.resolve(part); err == nil {
		unix.Close(fd)
		return errChanged
	} else if !errors.Is(err, unix.ENOENT) {
		return err
	}
	return &DanglingError{Volume: m.at.volume, Path: m.at.path, Element: part.path}
}

// refused classifies why nothing could be made in dir.
func (m *maker) refused(dir int, err error) error {
	switch {
	case errors.Is(err, errChanged):
		return err
	case errors.Is(err, unix.EROFS):
		return &ReadOnlyError{Volume: m.at.volume, Path: m.at.path}
	case errors.Is(err, unix.ENOTDIR):
		return errChanged // it was a directory when we looked
	case errors.Is(err, unix.ENOENT):
		if st, failure := stat(dir); failure == nil && st.Nlink == 0 { // removed
			return errChanged
		}
	}
	return m.at.failed("make", err)
}
