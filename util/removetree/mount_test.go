package removetree

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// Real mounts in the tree: the removal stops at them, names them, and what is
// mounted stays whole.
func TestMountsAreNotCrossed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, tc := range []struct {
			name  string
			at    string // the mount point below the parent
			mount func(t *testing.T, target, elsewhere string)
			// sameDev: st_dev alone cannot tell.
			sameDev bool
		}{
			{name: "tmpfs", at: "x/a/mnt", mount: mountTmpfs},
			{name: "tmpfs at the root of the tree", at: "x", mount: mountTmpfs},
			{name: "unreadable tmpfs", at: "x/a/mnt", mount: func(t *testing.T, target, _ string) {
				mountTmpfs(t, target, "")
				if err := unix.Chmod(target, 0); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { unix.Chmod(target, 0o700) })
			}},
			{name: "bind of the same file system", at: "x/a/mnt", mount: bind, sameDev: true},
			{name: "bind at the root of the tree", at: "x", mount: bind, sameDev: true},
			{name: "bound file", at: "x/a/file", mount: func(t *testing.T, target, elsewhere string) {
				bind(t, target, filepath.Join(elsewhere, "kept"))
			}},
		} {
			for name, k := range kernels {
				if tc.sameDev && !k.openat2 && !k.mountID {
					continue // documented at kernel
				}
				t.Run(tc.name+"/"+name, func(t *testing.T) {
					dir, elsewhere := t.TempDir(), t.TempDir()
					makeTree(t, dir, "x/a/mnt/", "x/a/file", "x/b")
					makeTree(t, elsewhere, "kept", "sub/kept")
					target := filepath.Join(dir, tc.at)
					tc.mount(t, target, elsewhere)
					err := remove(t.Context(), k, dir, "x")
					mounted, ok := errors.AsType[*MountError](err)
					if !ok || mounted.Path != target {
						t.Fatalf("err = %v, want a MountError for %s", err, target)
					}
					for _, kept := range []string{"kept", "sub/kept"} {
						if !exists(t, filepath.Join(elsewhere, kept)) {
							t.Errorf("%s was deleted through the mount", kept)
						}
					}
					if tc.name == "tmpfs" && !exists(t, filepath.Join(target, "in-tmpfs")) {
						t.Error("the mounted tmpfs was emptied")
					}
					if err := unix.Unmount(target, 0); err != nil {
						t.Fatal(err)
					}
					if err := remove(t.Context(), k, dir, "x"); err != nil || exists(t, filepath.Join(dir, "x")) {
						t.Errorf("after the unmount: %v", err)
					}
				})
			}
		}
	})
}

func mountTmpfs(t *testing.T, target, _ string) {
	t.Helper()
	if err := unix.Mount("tmpfs", target, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
	makeTree(t, target, "in-tmpfs")
}

func bind(t *testing.T, target, source string) {
	t.Helper()
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
}
