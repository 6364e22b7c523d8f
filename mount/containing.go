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

// Containing returns the mount that path lies in, which is the one at path if
// there is one. Path must be absolute and must exist; links in it are followed.
// It may block where path leads into a file system that does not answer.
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
