package rootdir

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A program that has used the root before removes the empty directories around
// what it removed, while another one begins to use it.
func TestLockWhileEmptyDirectoriesAreRemoved(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	for range 200 {
		var remover sync.WaitGroup
		remover.Go(func() {
			for range 20 {
				_ = unix.Rmdir(StateDir(root))
				_ = unix.Rmdir(root)
			}
		})
		unlock, err := Lock(root)
		if err != nil {
			t.Fatal(err)
		}
		remover.Wait()
		if err := os.Remove(filepath.Join(StateDir(root), "lock")); err != nil {
			t.Error(err)
		}
		unlock()
	}
}
