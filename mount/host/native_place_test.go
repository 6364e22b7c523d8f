package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
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
		mounted, plain := testtool.MkdirAll(t, base, "mounted"), testtool.MkdirAll(t, base, "plain")
		testtool.Must(t, unix.Mount("volume", mounted, "tmpfs", 0, "size=64k"))
		testtool.Must(t, unix.Mount("upper", mounted, "tmpfs", 0, "size=64k"))
		within := testtool.MkdirAll(t, mounted, "within")
		file, bound := filepath.Join(base, "file"), filepath.Join(base, "bound")
		testtool.Must(t, os.WriteFile(file, nil, 0o600))
		testtool.Must(t, os.WriteFile(bound, nil, 0o600))
		testtool.Must(t, unix.Mount(file, bound, "", unix.MS_BIND, ""))
		for _, target := range []string{"/", "/proc", mounted, plain, within, file, bound} {
			var want, got place
			for call, at := range map[string]*place{"now": &want, "before": &got} {
				n := native{table: mounttable.Uncached{}, request: mount.Request{Target: target}}
				if call == "before" {
					n.statx = statxBefore58
				}
				testtool.Must(t, n.openTarget())
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
		testtool.Must(t, unix.Mount("volume", top, "tmpfs", 0, "size=64k"))
		within := testtool.MkdirAll(t, top, "within")
		for target, want := range map[string]error{within: nil, top: unix.EBUSY} {
			n := native{statx: statxBefore58, api: mountapi.Kernel{}, table: mounttable.Uncached{}, request: mount.Request{Target: target}}
			testtool.Must(t, n.openTarget())
			again, err := unix.OpenTree(unix.AT_FDCWD, top, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
			testtool.Must(t, err)
			if err := n.refuseTwice(n.keep(again)); !errors.Is(err, want) {
				t.Errorf("on %s: %v, want %v", target, err, want)
			}
			n.close()
		}
	})
}
