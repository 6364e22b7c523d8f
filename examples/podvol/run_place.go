package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/rootdir"
	"github.com/podvol/podvol/volume/volumemanager"
)

// runsPlace is DIR/podvol/runs, where runs have their root directories, open
// from DIR on. What is looked up and removed there is looked up in what was
// opened and checked: whoever puts another directory or a link there leads
// nobody to it.
type runsPlace struct {
	base              string
	dir, podvol, runs *os.File
}

const runsName = "runs"

func runsDir(base string) string { return filepath.Join(volumemanager.StateDir(base), runsName) }

// makeRunsPlace is openRunsPlace, and makes what is missing.
func makeRunsPlace(base string) (*runsPlace, error) {
	dir, err := rootdir.Make(base, 0o700)
	if err != nil {
		return nil, err
	}
	dir.Close()
	return openPlace(base, func(parent *os.File, name string) error {
		if err := unix.Mkdirat(int(parent.Fd()), name, 0o700); err != nil && err != unix.EEXIST {
			return &fs.PathError{Op: "mkdir", Path: filepath.Join(parent.Name(), name), Err: err}
		}
		return nil
	})
}

// openRunsPlace opens the place; that there is none is [fs.ErrNotExist]. One
// that somebody else could change is an error.
func openRunsPlace(base string) (*runsPlace, error) {
	return openPlace(base, func(*os.File, string) error { return nil })
}

func openPlace(base string, makeDir func(parent *os.File, name string) error) (_ *runsPlace, err error) {
	p := &runsPlace{base: base}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	if p.dir, err = openBase(base); err != nil {
		return nil, err
	}
	if p.podvol, err = openBelow(p.dir, filepath.Base(volumemanager.StateDir(base)), makeDir); err != nil {
		return nil, err
	}
	if p.runs, err = openBelow(p.podvol, runsName, makeDir); err != nil {
		return nil, err
	}
	for _, dir := range []*os.File{p.dir, p.podvol, p.runs} {
		if err = checkOwn(dir, 0o022); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func openBelow(parent *os.File, name string, makeDir func(parent *os.File, name string) error) (*os.File, error) {
	if err := makeDir(parent, name); err != nil {
		return nil, err
	}
	return openDirAt(parent, name)
}

func (p *runsPlace) close() {
	for _, dir := range []*os.File{p.dir, p.podvol, p.runs} {
		if dir != nil {
			dir.Close()
		}
	}
}

// removeEmpty removes what is around runs, as far as it is empty. What is not
// keeps the rest, and that is no error.
func (p *runsPlace) removeEmpty() {
	if unix.Unlinkat(int(p.podvol.Fd()), runsName, unix.AT_REMOVEDIR) == nil {
		_ = unix.Unlinkat(int(p.dir.Fd()), filepath.Base(p.podvol.Name()), unix.AT_REMOVEDIR)
	}
}

// removeEmptyPlace does that for a run that came no further than its place. What
// cannot be removed is left to the next run, or to a repair.
func removeEmptyPlace(base string) {
	place, err := openRunsPlace(base)
	if err != nil {
		return
	}
	defer place.close()
	place.removeEmpty()
}

// removeEmptyBase removes the default root directory where a run has left
// nothing in it; one that was named is not podvol's to remove.
func removeEmptyBase(base string) {
	if base == defaultRootDir() {
		_ = unix.Rmdir(base)
	}
}

// openBase follows a link only if it is this user's own.
func openBase(base string) (*os.File, error) {
	dir, err := openDirAt(nil, base)
	if !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		return dir, err
	}
	var link unix.Stat_t
	if lookErr := unix.Lstat(base, &link); lookErr != nil || link.Mode&unix.S_IFMT != unix.S_IFLNK || int(link.Uid) != os.Geteuid() {
		return nil, err
	}
	return os.OpenFile(base, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

// openDirAt opens a directory, and no link to one; a parent of nil is the
// working directory.
func openDirAt(parent *os.File, name string) (*os.File, error) {
	at, path := unix.AT_FDCWD, name
	if parent != nil {
		at, path = int(parent.Fd()), filepath.Join(parent.Name(), name)
	}
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open directory", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// checkOwn refuses a directory of another user's, and one with a permission
// that it must not have.
func checkOwn(dir *os.File, forbidden uint32) error {
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return &fs.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	switch {
	case int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user: name a directory of your own with --root-dir, or come as that user", dir.Name())
	case stat.Mode&forbidden != 0:
		return fmt.Errorf("%s can be changed by others (mode %#o): name another directory with --root-dir, or take that away (chmod go-w %[1]s)",
			dir.Name(), stat.Mode&0o7777)
	}
	return nil
}
