package rootdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/podvol/podvol/util/rootdir"
)

// Check checks that a root directory, with what podvol keeps below it, can be
// relied on: every directory on the way belongs to root or to this process's
// user, nobody else can change it, and no link, special file or other user's file
// has the name of one of podvol's. If not, the error is a *[Error]. A root that is
// not there yet is checked as far as there is one, and is no error.
//
// It changes nothing and takes no lock. All that this package does below a root
// begins with it; programs that keep files of their own in [StateDir] call it
// first. It can be repeated, and called concurrently.
func Check(rootDir string) error {
	root, err := rootdir.Open(rootDir)
	if err == nil {
		defer root.Close()
		err = checkLayout(root)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &Error{rootDir, err}
	}
	return nil
}

// checkLayout refuses what has the name of something of podvol's and is not. What
// is missing is no error.
func checkLayout(root *os.File) error {
	for _, name := range []string{"pods", "plugins"} { // which may lie on another disk
		if err := checkPlace(filepath.Join(root.Name(), name)); err != nil {
			return err
		}
	}
	state, err := rootdir.OpenDirAt(root, stateName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer state.Close()
	return checkState(state)
}

// checkPlace follows links of root's and of the caller's.
func checkPlace(path string) error {
	dir, err := rootdir.Open(path)
	if err != nil {
		return unlessMissing(err)
	}
	return dir.Close()
}

func checkState(state *os.File) error {
	entries, err := state.ReadDir(-1)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := unlessMissing(checkEntry(state, entry)); err != nil {
			return err
		}
	}
	return nil
}

// checkEntry judges what is in the state directory. Files that appear by a second
// name (link(2)) have it until a crash is cleaned up after; not so those that are
// written in place.
func checkEntry(state *os.File, entry fs.DirEntry) error {
	switch name := entry.Name(); {
	case entry.IsDir():
		return rootdir.CheckDirAt(state, name)
	case entry.Type().IsRegular() && name != lockName && name != filepath.Base(RecordsPath("")):
		return nil // no other user could put it there
	default:
		return rootdir.CheckFileAt(state, name)
	}
}

func unlessMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
