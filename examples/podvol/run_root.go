package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume/volumemanager"
)

// runRoot is the root directory of one run: it is made and marked for it, locked
// while the run lives, and removed with all that is in it. A marked directory
// whose lock is free is what a run has left that was killed.
type runRoot struct {
	place *runsPlace
	name  string
	lock  *os.File // the directory itself
}

// runMarker is the file that tells a run's root directory from a directory of
// somebody else's. It comes first and goes last.
const runMarker = ".podvol-run"

func (r *runRoot) path() string { return filepath.Join(runsDir(r.place.base), r.name) }

// maxLabel keeps a run's name well below what a file system takes.
const maxLabel = 100

// newRunRoot makes and locks a fresh directory; label is for people who look
// there.
func newRunRoot(base, label string) (*runRoot, error) {
	if len(label) > maxLabel {
		label = label[:maxLabel]
	}
	var root *runRoot
	// Another run may just have removed the empty directories around it.
	err := retry.Patiently(fs.ErrNotExist, func() (err error) {
		root, err = tryRunRoot(base, label)
		return err
	})
	if err != nil {
		removeEmptyPlace(base)
		return nil, &volumemanager.RootError{RootDir: base, Err: err}
	}
	return root, nil
}

func tryRunRoot(base, label string) (_ *runRoot, err error) {
	place, err := makeRunsPlace(base)
	if err != nil {
		return nil, err
	}
	r := &runRoot{place: place}
	defer func() {
		if err != nil {
			r.close()
			place.close()
		}
	}()
	// Nobody takes a directory for abandoned between its making and its locking.
	if err := lockDir(place.runs, unix.LOCK_SH); err != nil {
		return nil, err
	}
	defer unlockDir(place.runs)
	path, err := os.MkdirTemp(runsDir(base), label+".") // nobody else can change that path
	if err != nil {
		return nil, err
	}
	r.name = filepath.Base(path)
	if r.lock, err = openDirAt(place.runs, r.name); err != nil {
		return nil, err
	}
	if err := lockDir(r.lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, err
	}
	return r, r.mark()
}

func (r *runRoot) mark() error {
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(int(r.lock.Fd()), runMarker, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	})
	if err != nil {
		return &fs.PathError{Op: "create", Path: filepath.Join(r.path(), runMarker), Err: err}
	}
	return unix.Close(fd)
}

// isOurs reports whether a run has made the directory. One that was killed
// before it could mark it, or after it removed the marker, leaves it empty.
func (r *runRoot) isOurs() (bool, error) {
	if checkOwn(r.lock, 0o077) != nil {
		return false, nil
	}
	var marker unix.Stat_t
	err := unix.Fstatat(int(r.lock.Fd()), runMarker, &marker, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil {
		return marker.Mode&unix.S_IFMT == unix.S_IFREG && int(marker.Uid) == os.Geteuid(), nil
	}
	number := r.name[strings.LastIndexByte(r.name, '.')+1:] // os.MkdirTemp's
	if _, unnumbered := strconv.ParseUint(number, 10, 64); unnumbered != nil || !errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	names, err := r.names()
	return len(names) == 0, err
}

func (r *runRoot) names() ([]string, error) {
	dir, err := openDirAt(r.lock, ".")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return dir.Readdirnames(-1)
}

// remove removes the directory with all that is in it, but nothing that is
// mounted there, and those around it that are empty now.
func (r *runRoot) remove(ctx context.Context) error {
	defer r.close()
	names, err := r.names()
	if err != nil {
		return err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return name == runMarker })
	for _, name := range append(names, runMarker) {
		if err := removetree.RemoveAt(ctx, r.lock, name); err != nil {
			return err
		}
	}
	if err := removetree.RemoveAt(ctx, r.place.runs, r.name); err != nil {
		return err
	}
	r.place.removeEmpty()
	return nil
}

// close gives the lock back and leaves the directory as it is.
func (r *runRoot) close() {
	if r.lock != nil {
		r.lock.Close()
	}
}

// deadRuns returns the runs whose process is gone, locked until done is called.
// A directory that no run has made is none.
func deadRuns(base string) (dead []*runRoot, done func(), err error) {
	place, err := openRunsPlace(base)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, func() {}, nil
	}
	if err != nil {
		return nil, func() {}, &volumemanager.RootError{RootDir: base, Err: err}
	}
	dead, err = place.dead()
	return dead, func() {
		for _, r := range dead {
			r.close()
		}
		place.close()
	}, err
}

func (p *runsPlace) dead() (dead []*runRoot, err error) {
	err = lockDir(p.runs, unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unlockDir(p.runs)
	names, err := p.runs.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		r := &runRoot{place: p, name: name}
		abandoned, err := r.isAbandoned()
		if err != nil {
			r.close()
			return dead, err
		}
		if !abandoned {
			r.close()
			continue
		}
		dead = append(dead, r)
	}
	return dead, nil
}

// isAbandoned locks what a run has left.
func (r *runRoot) isAbandoned() (bool, error) {
	var err error
	if r.lock, err = openDirAt(r.place.runs, r.name); err != nil {
		return false, nil // gone, or no run
	}
	if ours, err := r.isOurs(); err != nil || !ours {
		return false, err
	}
	err = lockDir(r.lock, unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) { // it lives, or is gone
		return false, nil
	}
	return err == nil, err
}

// lockDir locks a directory; a busy one is unix.EWOULDBLOCK where how says not
// to wait. A directory that was removed meanwhile is [fs.ErrNotExist].
func lockDir(dir *os.File, how int) error {
	err := eintr.Do(func() error { return unix.Flock(int(dir.Fd()), how) })
	var stat unix.Stat_t
	if err == nil {
		err = unix.Fstat(int(dir.Fd()), &stat)
	}
	if err == nil && stat.Nlink == 0 {
		err = unix.ENOENT
	}
	if err != nil {
		return &fs.PathError{Op: "lock", Path: dir.Name(), Err: err}
	}
	return nil
}

func unlockDir(dir *os.File) {
	_ = eintr.Do(func() error { return unix.Flock(int(dir.Fd()), unix.LOCK_UN) })
}
