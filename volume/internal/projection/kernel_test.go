package projection_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
)

// A secret on a real tmpfs: set up, updated, torn down.
func TestSecretOnTheKernel(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		source := fromSecret("tls")
		b := newBench(t, source)
		real := b.host.Host // the same roles, another mounter
		real.RootDir, real.Mounter = t.TempDir(), host.New(host.Config{})
		if err := b.plugin.Init(&real); err != nil {
			t.Fatal(err)
		}
		b.use(fakehost.Pod("web", v1.Volume{Name: "vol", VolumeSource: source}))
		b.provide("one")
		b.setUp()
		b.wantFiles(map[string]string{"key": "0644 one"})
		wantFileSystem(t, b.dir(), true)

		state := b.state()
		b.setUp()
		if len(state) == 0 || state[0] != b.state()[0] {
			t.Error("an unchanged volume was mounted again or written to")
		}
		root, err := os.OpenRoot(filepath.Join(b.dir(), "..data"))
		if err != nil {
			t.Fatal(err)
		}
		b.provide("two")
		b.setUp()
		b.wantFiles(map[string]string{"key": "0644 two"})
		if data, err := root.ReadFile("key"); err != nil || string(data) != "one" {
			t.Errorf("the version that was open: %q, %v", data, err)
		}
		if err := root.Close(); err != nil {
			t.Fatal(err)
		}

		b.tearDown()
		if _, err := os.Lstat(b.dir()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the volume is left: %v", err)
		}
		wantFileSystem(t, b.dir(), false)
		b.tearDown()

		b.host.Delete(volume.NewObjectRef("Secret", "default", "tls"))
		if err := b.trySetUp(volume.MounterArgs{}); !errors.Is(err, volume.ErrNotFound) || volume.IsUncertain(err) {
			t.Errorf("%v", err)
		}
		wantFileSystem(t, b.dir(), false)
	})
}

// wantFileSystem checks by the kernel's table and, where it is mounted, by the
// file system's type.
func wantFileSystem(t *testing.T, dir string, mounted bool) {
	t.Helper()
	mounts := table.Kernel()
	entry, found, err := mounts.At(dir)
	if err != nil || found != mounted {
		t.Errorf("mounted: %v %v, want %v", found, err, mounted)
	}
	if !mounted {
		return
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || st.Type != unix.TMPFS_MAGIC || entry.FSType != "tmpfs" {
		t.Errorf("%s is %x %s, %v", dir, st.Type, entry.FSType, err)
	}
}
