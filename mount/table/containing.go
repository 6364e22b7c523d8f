package table

import (
	"fmt"
	"path/filepath"

	"github.com/podvol/podvol/mount"
)

// container is implemented by tables that are not the kernel's, in which the
// kernel cannot follow links.
type container interface {
	Containing(path string) (mount.Entry, error)
}

// Containing returns the mount in which path lies. If path is a mount point, that
// is the mount at path. path must be absolute and must exist. Links in it are
// followed. Containing may block if path leads into a file system that does not
// answer.
func Containing(t mount.Table, path string) (mount.Entry, error) {
	if c, ok := t.(container); ok {
		return c.Containing(path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return mount.Entry{}, err
	}
	for dir := filepath.Clean(real); ; dir = filepath.Dir(dir) {
		e, found, err := t.At(dir)
		if found || err != nil {
			return e, err
		}
		if dir == "/" {
			return mount.Entry{}, fmt.Errorf("the mount table has no mount that contains %s", path)
		}
	}
}
