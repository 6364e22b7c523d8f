package journal_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/util/journal"
)

// What is not in the file that the next process opens is not confirmed, whatever
// somebody has done to the file or its directory; once it is back, all is.
func TestNothingIsConfirmedThatTheNextProcessDoesNotFind(t *testing.T) {
	for name, replace := range map[string]func(dir, path string) (back func() error, err error){
		"the file is moved away": func(dir, path string) (func() error, error) {
			return func() error { return os.Rename(path+"-away", path) }, os.Rename(path, path+"-away")
		},
		"another file takes its place": func(dir, path string) (func() error, error) {
			text, err := os.ReadFile(path) // an older copy, for example
			return func() error { return os.Rename(path+"-away", path) }, errors.Join(err, os.Rename(path, path+"-away"), os.WriteFile(path, text, 0o600))
		},
		"the directory is moved away": func(dir, path string) (func() error, error) {
			return func() error { return os.Rename(dir+"-away", dir) }, os.Rename(dir, dir+"-away")
		},
		"the directory is made anew": func(dir, path string) (func() error, error) {
			return func() error { return errors.Join(os.Remove(dir), os.Rename(dir+"-away", dir)) }, errors.Join(os.Rename(dir, dir+"-away"), os.Mkdir(dir, 0o700))
		},
		"the file is removed": func(dir, path string) (func() error, error) { return nil, os.Remove(path) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "state")
			must(t, os.Mkdir(dir, 0o700))
			path := filepath.Join(dir, "j")
			j, _ := open(t, path)
			defer j.Close()
			must(t, j.Put("a", raw("1")))
			back, err := replace(dir, path)
			must(t, err)
			for what, change := range map[string]func() error{
				"put":    func() error { return j.Put("b", raw("2")) },
				"note":   func() error { return j.Note("a", raw("2")) },
				"delete": func() error { return j.Delete("a") },
			} {
				if err := change(); !errors.Is(err, journal.ErrReplaced) {
					t.Errorf("%s: %v", what, err)
				}
			}
			if back == nil {
				return
			}
			must(t, back())
			must(t, j.Put("c", raw("3")))
			held, damaged, err := journal.Read(path)
			if err != nil || len(damaged) > 0 {
				t.Fatalf("%v, %v", damaged, err)
			}
			found := make(map[string]bool)
			for _, e := range held {
				found[e.Key] = true
			}
			if !found["c"] {
				t.Errorf("it holds %v", held)
			}
		})
	}
}
