package treewalk

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// An open directory is walked wherever its name leads by now, and errors have
// the name under which it was opened.
func TestOpenAt(t *testing.T) {
	for _, flags := range []int{os.O_RDONLY, unix.O_PATH} {
		base := t.TempDir()
		dir, moved := filepath.Join(base, "dir"), filepath.Join(base, "moved")
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755), os.Mkdir(filepath.Join(dir, "c"), 0o755)); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(dir, flags|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(dir, moved); err != nil {
			t.Fatal(err)
		}
		tree, err := OpenAt(f, Options{})
		if err != nil {
			t.Fatal(err)
		}
		f.Close() // the tree has its own
		var names nameList
		if err := tree.Walk(t.Context(), 1, func() Visitor { return &names }); err != nil || len(names) != 3 {
			t.Errorf("seen %q, %v", names, err)
		}
		tree.Close()
		if _, err := OpenAt(f, Options{}); !errors.Is(err, unix.EBADF) || !isPathError(err, dir) {
			t.Errorf("a closed directory: %v", err)
		}
	}
}

func isPathError(err error, prefix string) bool {
	e, ok := errors.AsType[*fs.PathError](err)
	return ok && strings.HasPrefix(e.Path, prefix)
}

// nameList enters everything and keeps the names.
type nameList []string

func (l *nameList) Visit(_ int, name Name, kind uint8) (bool, error) {
	*l = append(*l, name.String())
	return kind == unix.DT_DIR, nil
}

func (l *nameList) Enter(int, Info) error { return nil }
