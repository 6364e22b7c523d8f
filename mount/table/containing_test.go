package table_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// The fake and the kernel agree on the mount that a path lies in, links on the
// way to it included.
func TestContaining(t *testing.T) {
	t.Run("kernel", func(t *testing.T) {
		nstest.Run(t, func(t *testing.T) {
			m := mounttest.WithSystemCalls()
			mounts := table.Of(m)
			testContaining(t, m, mounts)
		})
	})
	t.Run("fake", func(t *testing.T) {
		fake := fakemount.New()
		defer fake.Close()
		testContaining(t, fake, fake.Table())
	})
}

func testContaining(t *testing.T, m mount.ContextMounter, mounts mount.Table) {
	top := t.TempDir()
	target := testtool.MkdirAll(t, top, "target")
	if err := m.MountContext(t.Context(), mounttest.Tmpfs(target, "nosuid")); err != nil {
		t.Fatal(err)
	}
	defer m.UnmountContext(t.Context(), target, mount.UnmountOptions{})
	testtool.MkdirAll(t, target, "below")
	testtool.MkdirAll(t, top, "beside")
	for link, to := range map[string]string{"link": "target/below", "out": "../beside"} {
		if link == "out" {
			to, link = filepath.Join(top, "beside"), "target/out"
		}
		if err := os.Symlink(to, filepath.Join(top, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, inside := range map[string]bool{"target": true, "target/below": true, "link": true, "beside": false, "target/out": false, ".": false} {
		e, err := table.Containing(mounts, filepath.Join(top, path))
		if err != nil || (e.Target == target) != inside {
			t.Errorf("%s: %+v, %v", path, e, err)
		}
	}
	if e, err := table.Containing(mounts, filepath.Join(top, "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing: %+v, %v", e, err)
	}
}
