package table_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

func TestHoldingTellsTheMountOfAnOpenFile(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		mounts := table.Kernel()
		if err := unix.Mount("first", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		testtool.WriteFile(t, "", dir, "file")
		file, err := os.Open(filepath.Join(dir, "file"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := unix.Mount("second", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		e, err := table.Holding(mounts, file)
		if err != nil || e.Source != "first" || e.Target != dir {
			t.Errorf("the file lies in %+v, %v", e, err)
		}
		for range 2 {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
		}
		if e, err := table.Holding(mounts, file); err == nil {
			t.Errorf("the file lies in %+v, which was detached", e)
		}
	})
}

func TestFakeHolding(t *testing.T) {
	f, root := mounttest.NewFake(t, "a", "b", "export/sub")
	f.Serve("server:/x", filepath.Join(root, "export"))
	mounttest.MountBy(t, f, mount.Request{Source: "server:/x", Target: filepath.Join(root, "a"), FSType: "nfs"})
	mounttest.MountBy(t, f, mount.Request{Source: "server:/x/sub", Target: filepath.Join(root, "b"), FSType: "nfs"})
	for path, source := range map[string]string{"a": "server:/x", "b": "server:/x/sub", ".": "/dev/root"} {
		file, err := os.Open(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		if e, err := table.Holding(f.Table(), file); err != nil || e.Source != source {
			t.Errorf("%s lies in %+v, %v; want %s", path, e, err, source)
		}
		file.Close()
		if _, err := table.Holding(f.Table(), file); err == nil {
			t.Errorf("of a closed file: no error")
		}
	}
}
