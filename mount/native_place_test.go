package mount

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// statxBefore58 knows neither the mounts' numbers nor their roots.
func statxBefore58(dir int, path string, flags, mask int, st *unix.Statx_t) error {
	err := unix.Statx(dir, path, flags, mask, st)
	st.Mask &^= unix.STATX_MNT_ID
	st.Mnt_id = 0
	st.Attributes &^= unix.STATX_ATTR_MOUNT_ROOT
	st.Attributes_mask &^= unix.STATX_ATTR_MOUNT_ROOT
	return err
}

func TestRootOfAMountBefore58(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		mounted, plain := mkdirs(t, base, "mounted"), mkdirs(t, base, "plain")
		must(t, unix.Mount("volume", mounted, "tmpfs", 0, "size=64k"))
		must(t, unix.Mount("upper", mounted, "tmpfs", 0, "size=64k"))
		within := mkdirs(t, mounted, "within")
		file, bound := filepath.Join(base, "file"), filepath.Join(base, "bound")
		must(t, os.WriteFile(file, nil, 0o600))
		must(t, os.WriteFile(bound, nil, 0o600))
		must(t, unix.Mount(file, bound, "", unix.MS_BIND, ""))
		for _, target := range []string{"/", "/proc", mounted, plain, within, file, bound} {
			var want, got place
			for call, at := range map[string]*place{"now": &want, "before": &got} {
				n := native{statx: unix.Statx, table: kernelTable{}, request: Request{Target: target}}
				if call == "before" {
					n.statx = statxBefore58
				}
				must(t, n.openTarget())
				*at = n.at
				n.close()
			}
			if want.untold || !got.untold {
				t.Fatalf("%s: %+v, and before Linux 5.8 %+v", target, want, got)
			}
			got.untold = false
			if got != want {
				t.Errorf("%s: %+v, and before Linux 5.8 %+v", target, want, got)
			}
		}
	})
}

// A file system is refused on itself, not on a directory of its own.
func TestTwiceBefore58(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		must(t, unix.Mount("volume", top, "tmpfs", 0, "size=64k"))
		within := mkdirs(t, top, "within")
		for target, want := range map[string]error{within: nil, top: unix.EBUSY} {
			n := native{statx: statxBefore58, api: mountapi.Kernel{}, table: kernelTable{}, request: Request{Target: target}}
			must(t, n.openTarget())
			again, err := unix.OpenTree(unix.AT_FDCWD, top, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			must(t, err)
			if err := n.refuseTwice(n.keep(again)); !errors.Is(err, want) {
				t.Errorf("on %s: %v, want %v", target, err, want)
			}
			n.close()
		}
	})
}
