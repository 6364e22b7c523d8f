package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/volume/volumemanager"
)

// runRoot is the root directory of one run: it is made for it, locked while the
// run lives, and removed with all that is in it. A directory whose lock is free
// is what a run has left that was killed.
type runRoot struct {
	base string
	name string
	lock *os.File // the directory itself
}

// runBase is the directory below which runs have theirs, unless --root-dir says
// otherwise: the default root directory, or where an ordinary user has none, a
// private one among the temporary files.
func runBase() string {
	if dir := defaultRootDir(); dir != "" {
		return dir
	}
	return filepath.Join(os.TempDir(), "podvol-"+strconv.Itoa(os.Geteuid()))
}

func runsDir(base string) string { return filepath.Join(volumemanager.StateDir(base), "runs") }

func (r *runRoot) path() string { return filepath.Join(runsDir(r.base), r.name) }

// maxLabel keeps a run's name well below what a file system takes.
const maxLabel = 100

// newRunRoot makes and locks a fresh directory; label is for people who look
// there.
func newRunRoot(base, label string) (*runRoot, error) {
	if len(label) > maxLabel {
		label = label[:maxLabel]
	}
	for range 100 {
		root, err := tryRunRoot(base, label)
		if errors.Is(err, fs.ErrNotExist) {
			continue // another run has just removed the empty directories around it
		}
		if err != nil {
			return nil, &volumemanager.RootError{RootDir: base, Err: err}
		}
		return root, nil
	}
	return nil, &volumemanager.RootError{RootDir: base, Err: errors.New("it is removed again and again")}
}

func tryRunRoot(base, label string) (*runRoot, error) {
	if err := makePrivate(base); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(runsDir(base), 0o700); err != nil {
		return nil, err
	}
	// Nobody takes a directory for abandoned between its making and its locking.
	runs, err := lockDir(runsDir(base), unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	defer runs.Close()
	path, err := os.MkdirTemp(runsDir(base), label+".")
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(path, unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return nil, err
	}
	return &runRoot{base: base, name: filepath.Base(path), lock: lock}, nil
}

// makePrivate makes the base. Where it lies among other users' files it must be
// nobody else's.
func makePrivate(base string) error {
	if err := os.MkdirAll(filepath.Dir(base), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(base, 0o700); !errors.Is(err, fs.ErrExist) {
		return err
	}
	if filepath.Dir(base) != filepath.Clean(os.TempDir()) {
		return nil
	}
	var stat unix.Stat_t
	if err := unix.Lstat(base, &stat); err != nil {
		return &fs.PathError{Op: "lstat", Path: base, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFDIR || int(stat.Uid) != os.Geteuid() || stat.Mode&0o022 != 0 {
		return fmt.Errorf("%s is no directory of this user's alone, and lies where everybody can make one", base)
	}
	return nil
}

// lockDir opens a directory and locks it; a busy one is unix.EWOULDBLOCK where
// how says not to wait. A directory that was removed meanwhile is
// [fs.ErrNotExist].
func lockDir(path string, how int) (*os.File, error) {
	dir, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	err = eintr.Do(func() error { return unix.Flock(int(dir.Fd()), how) })
	var stat unix.Stat_t
	if err == nil {
		err = unix.Fstat(int(dir.Fd()), &stat)
	}
	if err == nil && stat.Nlink == 0 {
		err = unix.ENOENT
	}
	if err != nil {
		dir.Close()
		return nil, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	return dir, nil
}

// remove removes the directory with all that is in it, but nothing that is
// mounted there, and those around it that are empty now.
func (r *runRoot) remove(ctx context.Context) error {
	defer r.lock.Close()
	if err := removetree.Remove(ctx, runsDir(r.base), r.name); err != nil {
		return err
	}
	removeEmptyRuns(r.base)
	return nil
}

// removeEmptyRuns removes what is around runs, as far as it is empty. What is
// not keeps the rest, and that is no error.
func removeEmptyRuns(base string) {
	for _, dir := range []string{runsDir(base), volumemanager.StateDir(base)} {
		if err := unix.Rmdir(dir); err != nil && err != unix.ENOENT {
			return
		}
	}
	if base == runBase() {
		_ = unix.Rmdir(base)
	}
}

// deadRuns returns the runs whose process is gone, locked, until release is
// called; alive is how many others there are.
func deadRuns(base string) (dead []*runRoot, alive int, err error) {
	runs, err := lockDir(runsDir(base), unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	defer runs.Close()
	entries, err := runs.ReadDir(-1)
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		r := &runRoot{base: base, name: e.Name()}
		r.lock, err = lockDir(r.path(), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case errors.Is(err, unix.EWOULDBLOCK):
			alive++
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP): // gone, or no run
		case err != nil:
			return nil, 0, errors.Join(err, release(dead))
		default:
			dead = append(dead, r)
		}
	}
	return dead, alive, nil
}

func release(runs []*runRoot) error {
	var errs []error
	for _, r := range runs {
		errs = append(errs, r.lock.Close())
	}
	return errors.Join(errs...)
}
