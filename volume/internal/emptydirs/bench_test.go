package emptydirs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/emptydirs"
)

const memory = v1.StorageMediumMemory

// bench is one volume of one pod on the fake mounter.
type bench struct {
	*testing.T
	fake *fakemount.Mounter
	host *volume.Host
	v    volume.PodVolume
	dir  string
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{T: t, fake: fakemount.New()}
	t.Cleanup(func() {
		if err := b.fake.Close(); err != nil {
			t.Error(err)
		}
	})
	b.use(&volume.Host{RootDir: t.TempDir(), Mounter: b.fake})
	return b
}

func (b *bench) use(host *volume.Host) {
	b.host = host
	b.v = volume.PodVolume{Host: host, Plugin: "kubernetes.io/empty-dir", Name: "vol", PodUID: "u1"}
	b.dir = b.v.GetPath()
}

func (b *bench) setUp(o emptydirs.Options) {
	b.Helper()
	if err := emptydirs.SetUp(b.Context(), b.v, b.dir, o); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) tearDown(wrapped bool) {
	b.Helper()
	if err := emptydirs.TearDown(b.Context(), b.v, b.dir, wrapped, nil); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) marker(wrapped bool) string {
	name := "vol"
	if wrapped {
		name = "wrapped_vol"
	}
	return filepath.Join(b.host.RootDir, "pods/u1/plugins/kubernetes.io~empty-dir", name, "ready")
}

func (b *bench) wantReady(want, wrapped bool) {
	b.Helper()
	_, err := os.Lstat(b.marker(wrapped))
	if got := err == nil; got != want {
		b.Errorf("ready marker: %v (%v), want %v", got, err, want)
	}
}

func (b *bench) wantMounts(want int) {
	b.Helper()
	if got := len(b.mounts()); got != want {
		b.Errorf("%d mounts at the volume, want %d", got, want)
	}
}

func (b *bench) mounts() (found []mount.Entry) {
	b.Helper()
	mounts := table.Of(b.host.Mounter)
	all, err := mounts.All()
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range all {
		if e.Target == b.dir {
			found = append(found, e)
		}
	}
	return found
}

func (b *bench) wantMode(want fs.FileMode) {
	b.Helper()
	info, err := os.Stat(b.dir)
	if err != nil {
		b.Fatal(err)
	}
	if got := info.Mode() &^ fs.ModeDir; got != want {
		b.Errorf("mode %v, want %v", got, want)
	}
}

// wantNothing checks that neither mount, directory nor marker is left.
func (b *bench) wantNothing() {
	b.Helper()
	b.wantMounts(0)
	for _, path := range []string{b.dir, filepath.Dir(b.marker(false)), filepath.Dir(b.marker(true)),
		filepath.Join(filepath.Dir(b.dir), "deleting~vol")} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			b.Errorf("%s is left (%v)", path, err)
		}
	}
}

func (b *bench) write(name string) string {
	b.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("data"), 0o644); err != nil {
		b.Fatal(err)
	}
	return path
}

func (b *bench) wantData(path string) {
	b.Helper()
	if data, err := os.ReadFile(path); err != nil || string(data) != "data" {
		b.Errorf("%s holds %q, %v", path, data, err)
	}
}

func setUmask(t *testing.T, mask int) {
	old := unix.Umask(mask)
	t.Cleanup(func() { unix.Umask(old) })
}
