package local_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/local"
)

// newKernelPlugin returns the plugin with the host's own mounter, and a tmpfs
// that stands for a disk.
func newKernelPlugin(t *testing.T) (p volume.VolumePlugin, disk string) {
	t.Helper()
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	disk = filepath.Join(base, "mnt", "disks", "vol1")
	if err := os.MkdirAll(disk, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("disk", disk, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	p = local.New(local.Config{})
	if err := p.Init(&volume.Host{RootDir: filepath.Join(base, "root"), Mounter: host.New(host.Config{})}); err != nil {
		t.Fatal(err)
	}
	return p, disk
}

func TestKernelBind(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		p, disk := newKernelPlugin(t)
		first := mounter(t, p, spec(disk), "u1")
		readOnly := spec(disk)
		readOnly.ReadOnly = true
		second := mounter(t, p, readOnly, "u2")
		for range 2 {
			setUp(t, first)
			setUp(t, second)
		}
		if err := os.WriteFile(filepath.Join(first.GetPath(), "file"), []byte("data"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(second.GetPath(), "file"), nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("writing through the read-only volume: %v", err)
		}
		f, err := os.Open(filepath.Join(first.GetPath(), "file"))
		if err != nil {
			t.Fatal(err)
		}
		if err := tearDown(t, p, "u1"); !errors.Is(err, mount.ErrBusy) {
			t.Errorf("TearDown while in use = %v", err)
		}
		f.Close()
		for range 2 {
			if err := tearDown(t, p, "u1"); err != nil {
				t.Fatal(err)
			}
			wantGone(t, first.GetPath())
		}
		if data, err := os.ReadFile(filepath.Join(second.GetPath(), "file")); err != nil || string(data) != "data" {
			t.Errorf("the other pod reads %q, %v", data, err)
		}
		if err := tearDown(t, p, "u2"); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(disk, "file")); err != nil {
			t.Errorf("on the disk: %v", err)
		}
	})
}

func TestKernelReconstruction(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		p, disk := newKernelPlugin(t)
		below := filepath.Join(disk, "a", "b")
		if err := os.MkdirAll(below, 0o755); err != nil {
			t.Fatal(err)
		}
		for i, path := range []string{disk, below} {
			m := mounter(t, p, spec(path), types.UID('a'+rune(i)))
			setUp(t, m)
			rebuilt, err := p.ConstructVolumeSpec(t.Context(), "pv1", m.GetPath())
			if err != nil {
				t.Fatal(err)
			}
			if got := rebuilt.Spec.PersistentVolume.Spec.Local.Path; got != path || !rebuilt.Complete {
				t.Errorf("rebuilt path %q, complete %v, want %q", got, rebuilt.Complete, path)
			}
		}
		// A mount that covers the disk hides which directory it was.
		if err := unix.Mount("cover", filepath.Dir(disk), "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		m := mounter(t, p, spec(disk), "a")
		rebuilt, err := p.ConstructVolumeSpec(t.Context(), "pv1", m.GetPath())
		if err != nil || rebuilt.Complete {
			t.Errorf("ConstructVolumeSpec = %+v, %v", rebuilt, err)
		}
		for _, uid := range []types.UID{"a", "b"} {
			if err := tearDown(t, p, uid); err != nil {
				t.Error(err)
			}
		}
	})
}
