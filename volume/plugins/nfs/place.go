package nfs

import (
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/podvol/podvol/util/pathin"
)

// place is a directory of the host's by the path that the host has for it, and
// by the one that the mount table has, where no links are left: a root directory
// may lie behind some.
type place struct{ given, real string }

// placeOf resolves the links of a directory that nothing is mounted at. One that
// does not exist has nothing mounted below it either. Whoever compares it with
// the mount table reads that first: a directory may be made meanwhile.
func placeOf(dir string) (place, error) {
	real, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return place{dir, dir}, nil
	}
	return place{dir, real}, err
}

// holds reports whether a target of the mount table lies below the directory.
func (p place) holds(target string) bool {
	return pathin.Strictly(p.real, target) || pathin.Strictly(p.given, target)
}
