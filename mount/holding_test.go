package mount_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/nstest"
)

func TestHoldingTellsTheMountOfAnOpenFile(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		table, err := mount.KernelTable()
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("first", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "file"), "")
		file, err := os.Open(filepath.Join(dir, "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := unix.Mount("second", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		e, err := mount.Holding(table, file)
		if err != nil || e.Source != "first" || e.Target != dir {
			t.Errorf("the file lies in %+v, %v", e, err)
		}
		for range 2 {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		}
		if e, err := mount.Holding(table, file); err == nil {
			t.Errorf("the file lies in %+v, which was detached", e)
		}
	})
}

func TestFakeHolding(t *testing.T) {
	f, root := newFake(t, "a", "b", "export/sub")
	f.Serve("server:/x", filepath.Join(root, "export"))
	mustMount(t, f, mount.Request{Source: "server:/x", Target: filepath.Join(root, "a"), FSType: "nfs"})
	mustMount(t, f, mount.Request{Source: "server:/x/sub", Target: filepath.Join(root, "b"), FSType: "nfs"})
	for path, source := range map[string]string{"a": "server:/x", "b": "server:/x/sub", ".": "/dev/root"} {
		file, err := os.Open(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if e, err := mount.Holding(f.Table(), file); err != nil || e.Source != source {
			t.Errorf("%s lies in %+v, %v; want %s", path, e, err, source)
		}
		file.Close()
		if _, err := mount.Holding(f.Table(), file); err == nil {
			t.Errorf("of a closed file: no error")
		}
	}
}
