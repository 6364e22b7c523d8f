package rootdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/podvol/podvol/util/rootdir"
)

// Check checks that a root directory, with podvol's own files below it, can be relied on:
// every directory on the way belongs to root or to this process's user, no other user can
// change it, and no link, special file or other user's file has the name of one of
// podvol's. If not, the error is a *[Error]. A missing root is checked as far as it
// exists, and is no error.
//
// It changes nothing, takes no lock, and may be called concurrently.
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

// checkLayout refuses a file that has the name of one of podvol's and is not. A
// missing one is no error.
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

// checkEntry judges an entry of the state directory. Files made by link(2) may
// have a second name after a crash; files that are written in place never have.
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
