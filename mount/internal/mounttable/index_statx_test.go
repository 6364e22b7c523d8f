package mounttable

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// A mount point below a directory that was renamed is found, which there is no
// signal of, whatever statx(2) says: it may be interrupted, be denied, or be
// too old to know.
func TestIndexFindsRenamedMountsWhateverStatxSays(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for name, with := range map[string]func() Statx{
			"as it is": func() Statx { return unix.Statx },
			"interrupted": func() Statx {
				calls := 0
				return func(dir int, path string, flags, mask int, st *unix.Statx_t) error {
					if calls++; calls%2 == 1 {
						return unix.EINTR
					}
					return unix.Statx(dir, path, flags, mask, st)
				}
			},
			"before Linux 5.8": func() Statx {
				return func(dir int, path string, flags, mask int, st *unix.Statx_t) error {
					err := unix.Statx(dir, path, flags, mask, st)
					st.Attributes &^= unix.STATX_ATTR_MOUNT_ROOT
					st.Attributes_mask &^= unix.STATX_ATTR_MOUNT_ROOT
					return err
				}
			},
			"denied at the mount point": func() Statx {
				return func(dir int, path string, flags, mask int, st *unix.Statx_t) error {
					if filepath.Base(path) == "target" {
						return unix.EACCES
					}
					return unix.Statx(dir, path, flags, mask, st)
				}
			},
		} {
			t.Run(name, func(t *testing.T) {
				base := t.TempDir()
				target := testtool.MkdirAll(t, base, "old", "target")
				empty := testtool.MkdirAll(t, base, "empty", "target")
				testtool.Must(t, unix.Mount("volume", target, "tmpfs", 0, "size=64k"))
				x := New(statmount.Host{})
				x.statx = with()
				agree(t, x, target)
				testtool.Must(t, os.Rename(filepath.Join(base, "old"), filepath.Join(base, "new")))
				// Neither reads all before At does.
				moved := filepath.Join(base, "new", "target")
				if e, ok, err := x.At(moved); !ok || err != nil || e.Target != moved {
					t.Errorf("at its new name: %+v, %v, %v", e, ok, err)
				}
				if x.byMountinfo {
					// Only statmount tells that what was found is no longer there.
					testtool.Must(t, unix.Mount("a signal", base, "tmpfs", 0, ""))
					testtool.Must(t, unix.Unmount(base, 0))
				}
				agree(t, x, moved, target, empty, filepath.Join(base, "gone", "target"))
				testtool.Must(t, unix.Unmount(moved, 0))
			})
		}
	})
}

// An index that is interrupted goes on from memory, it does not begin anew.
func TestInterruptedIndexKeepsItsTable(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		target := testtool.MkdirAll(t, t.TempDir(), "target")
		testtool.Must(t, unix.Mount("volume", target, "tmpfs", 0, "size=64k"))
		x := New(statmount.Host{})
		calls := 0
		x.statx = func(dir int, path string, flags, mask int, st *unix.Statx_t) error {
			if calls++; calls%3 != 0 {
				return unix.EINTR
			}
			return unix.Statx(dir, path, flags, mask, st)
		}
		for range 5 {
			if _, ok, err := x.At(target); !ok || err != nil {
				t.Fatal(ok, err)
			}
		}
		if x.graph == nil || x.loads != 1 || calls == 0 {
			t.Errorf("the table was read %d times, and is kept: %v; %d calls of statx(2)", x.loads, x.graph != nil, calls)
		}
	})
}
