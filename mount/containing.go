package mount

import (
	"fmt"
	"path/filepath"
)

// container is implemented by tables that are not the kernel's, in which the
// kernel cannot follow links.
type container interface {
	containing(path string) (Entry, error)
}

// Containing returns the mount in which path lies. If path is a mount point, that
// is the mount at path. path must be absolute and must exist. Links in it are
// followed. Containing may block if path leads into a file system that does not
// answer.
func Containing(t Table, path string) (Entry, error) {
	if c, ok := t.(container); ok {
		return c.containing(path)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return Entry{}, err
	}
	for dir := filepath.Clean(real); ; dir = filepath.Dir(dir) {
		e, found, err := t.At(dir)
		if found || err != nil {
			return e, err
		}
		if dir == "/" {
			return Entry{}, fmt.Errorf("the mount table has no mount that contains %s", path)
		}
	}
}

func (t fakeTable) containing(path string) (Entry, error) {
	t.fake.mu.Lock()
	defer t.fake.mu.Unlock()
	at, err := t.fake.walk(path, true)
	if err != nil {
		return Entry{}, err
	}
	return at.mount.entry(), nil
}
