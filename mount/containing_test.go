package mount_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// The fake and the kernel agree on the mount that a path lies in, links on the
// way to it included.
func TestContaining(t *testing.T) {
	t.Run("kernel", func(t *testing.T) {
		nstest.Run(t, func(t *testing.T) {
			m := callsOnly()
			table, err := mount.TableOf(m)
			if err != nil {
				t.Fatal(err)
			}
			testContaining(t, m, table)
		})
	})
	t.Run("fake", func(t *testing.T) {
		fake := mount.NewFakeMounter()
		defer fake.Close()
		testContaining(t, fake, fake.Table())
	})
}

func testContaining(t *testing.T, m mount.ContextMounter, table mount.Table) {
	top := t.TempDir()
	target := makeDir(t, top, "target")
	if err := m.MountContext(t.Context(), tmpfsAt(target, "nosuid")); err != nil {
		t.Fatal(err)
	}
	defer m.UnmountContext(t.Context(), target, mount.UnmountOptions{})
	makeDir(t, target, "below")
	makeDir(t, top, "beside")
	for link, to := range map[string]string{"link": "target/below", "out": "../beside"} {
		if link == "out" {
			to, link = filepath.Join(top, "beside"), "target/out"
		}
		if err := os.Symlink(to, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, inside := range map[string]bool{"target": true, "target/below": true, "link": true, "beside": false, "target/out": false, ".": false} {
		e, err := mount.Containing(table, filepath.Join(top, path))
		if err != nil || (e.Target == target) != inside {
			t.Errorf("%s: %+v, %v", path, e, err)
		}
	}
	if e, err := mount.Containing(table, filepath.Join(top, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %+v, %v", e, err)
	}
}
