package removetree

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// NFS keeps what somebody has open, under another name, and says that it is busy
// as it does of a mount point.
func TestWhatIsOpenIsNoMount(t *testing.T) {
	for name, k := range kernels {
		for _, entry := range []string{".nfs0001", "dir"} {
			t.Run(name+"/"+entry, func(t *testing.T) {
				dir := t.TempDir()
				makeTree(t, dir, "x/.nfs0001", "x/dir/")
				k.unlinkat = func(dirfd int, name string, flags int) error {
					isDir := flags&unix.AT_REMOVEDIR != 0
					if name == entry && isDir == (entry == "dir") {
						return unix.EBUSY
					}
					return unix.Unlinkat(dirfd, name, flags)
				}
				path, err := filepath.Join(dir, "x", entry), remove(t.Context(), k, dir, "x")
				if !k.openat2 && !k.mountID { // such a kernel cannot tell
					if mounted, ok := errors.AsType[*MountError](err); !ok || mounted.Path != path {
						t.Errorf("err = %v", err)
					}
				} else if open, ok := errors.AsType[*OpenError](err); !ok || open.Path != path || !errors.Is(err, unix.EBUSY) ||
					!strings.Contains(err.Error(), "fuser -v "+path) {
					t.Errorf("err = %v", err)
				}
				if _, err := os.Lstat(path); err != nil {
					t.Error(err)
				}
				k.unlinkat = nil
				if err := remove(t.Context(), k, dir, "x"); err != nil || exists(t, filepath.Join(dir, "x")) {
					t.Errorf("once it is closed: %v", err)
				}
			})
		}
	}
}
