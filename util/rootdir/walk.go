package rootdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/openat"
)

// Open opens a directory to look names up in; it cannot be read by itself. That
// it is not there matches [fs.ErrNotExist], that it is not to be relied on is an
// *[Error]. A relative path is below the working directory.
func Open(path string) (*os.File, error) { return walk(path, nil) }

// Make is [Open], and makes missing directories with these permissions, less the
// umask, and syncs those above. Existing ones stay as they are. A directory that is removed
// meanwhile matches [fs.ErrNotExist].
func Make(path string, perm fs.FileMode) (*os.File, error) {
	return walk(path, func(parent *os.File, name string) error { return mkdir(parent, name, perm) })
}

// maxLinks is the kernel's own limit.
const maxLinks = 40

// walker goes along a path.
type walker struct {
	trust trust
	at    *os.File // the directory that it has come to
	todo  []string
	links int
	make  func(parent *os.File, name string) error // nil: nothing
}

func walk(path string, makeDir func(parent *os.File, name string) error) (_ *os.File, err error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	w := &walker{make: makeDir, todo: strings.Split(abs, "/")}
	if err := w.restart(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			w.at.Close()
		}
	}()
	if w.trust, err = newTrust(w.at); err != nil {
		return nil, err
	}
	for len(w.todo) > 0 {
		name := w.todo[0]
		w.todo = w.todo[1:]
		if name == "" || name == "." {
			continue
		}
		if err := w.step(name); err != nil {
			return nil, err
		}
	}
	return w.at, w.trust.strictly().checkDir(w.at)
}

// restart goes to the top.
func (w *walker) restart() error {
	top, err := openat.File(nil, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	w.move(top)
	return nil
}

func (w *walker) move(to *os.File) {
	if w.at != nil {
		w.at.Close()
	}
	w.at = to
}

func (w *walker) step(name string) error {
	next, err := w.open(name)
	if errors.Is(err, unix.ENOTDIR) {
		return w.follow(name)
	}
	if err != nil {
		return err
	}
	w.move(next)
	return w.trust.checkDir(next)
}

func (w *walker) open(name string) (*os.File, error) {
	next, err := openat.File(w.at, name, unix.O_PATH|unix.O_DIRECTORY, 0)
	if !errors.Is(err, fs.ErrNotExist) || w.make == nil {
		return next, err
	}
	if err := w.make(w.at, name); err != nil {
		return nil, err
	}
	return openat.File(w.at, name, unix.O_PATH|unix.O_DIRECTORY, 0)
}

// follow goes on where a link leads that no other user has made.
func (w *walker) follow(name string) error {
	link, err := openat.File(w.at, name, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer link.Close()
	st, err := stat(link)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return &fs.PathError{Op: "open directory", Path: link.Name(), Err: unix.ENOTDIR}
	}
	around, err := stat(w.at)
	if err != nil {
		return err
	}
	trust := w.trust
	if around.Mode&unix.S_ISVTX != 0 { // where every user may make one
		trust = trust.strictly()
	}
	if !trust.owner(st.Uid) || st.Nlink != 1 {
		return misplaced(link.Name(), st.Uid, "symbolic link", "directory")
	}
	if w.links++; w.links > maxLinks {
		return &fs.PathError{Op: "open directory", Path: link.Name(), Err: unix.ELOOP}
	}
	target, err := readlink(link)
	if err != nil {
		return err
	}
	w.todo = append(strings.Split(target, "/"), w.todo...)
	if filepath.IsAbs(target) {
		return w.restart()
	}
	return nil
}

func readlink(link *os.File) (string, error) {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(link.Fd()), "", target)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: link.Name(), Err: err}
	}
	return string(target[:n]), nil
}

// mkdir leaves an existing directory as it is. A new one is there after a power cut, too, so that
// what its user syncs in it is found.
func mkdir(parent *os.File, name string, perm fs.FileMode) error {
	err := eintr.Do(func() error { return unix.Mkdirat(int(parent.Fd()), name, uint32(perm.Perm())) })
	if err == unix.EEXIST {
		return nil
	}
	if err != nil {
		return &fs.PathError{Op: "mkdir", Path: filepath.Join(parent.Name(), name), Err: err}
	}
	return syncDir(parent)
}

// syncDir syncs a directory, unless it is one that must not be read, or is on a file system that
// has no such call.
func syncDir(dir *os.File) error {
	readable, err := openat.Dir(dir, ".")
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer readable.Close()
	err = eintr.Do(func() error { return unix.Fsync(int(readable.Fd())) })
	if err != nil && err != unix.EINVAL {
		return &fs.PathError{Op: "fsync", Path: dir.Name(), Err: err}
	}
	return nil
}
