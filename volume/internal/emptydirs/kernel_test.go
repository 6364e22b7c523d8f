package emptydirs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/removetree"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/emptydirs"
)

// onKernel runs f with the host's own mounter.
func onKernel(t *testing.T, f func(*bench)) {
	nstest.Run(t, func(t *testing.T) {
		root, err := filepath.EvalSymlinks(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		b := &bench{T: t}
		b.use(&volume.Host{RootDir: root, Mounter: host.New(host.Config{})})
		f(b)
	})
}

func TestKernelDisk(t *testing.T) {
	onKernel(t, func(b *bench) {
		setUmask(b.T, 0o077)
		b.setUp(emptydirs.Options{})
		b.wantMode(0o777)
		file := b.write("a/file")
		b.setUp(emptydirs.Options{})
		b.wantData(file)
		b.wantMounts(0)
		b.tearDown(false)
		b.wantNothing()
	})
}

func TestKernelMemory(t *testing.T) {
	onKernel(t, func(b *bench) {
		setUmask(b.T, 0o077)
		gid := int64(os.Getgid())
		o := emptydirs.Options{Medium: v1.StorageMediumMemory, SizeBytes: 1 << 20, GID: &gid}
		b.setUp(o)
		b.setUp(o)
		b.wantMounts(1)
		b.wantMode(0o777 | fs.ModeSetgid | fs.ModeSticky)
		e := b.mounts()[0]
		if e.FSType != "tmpfs" || !slices.Contains(e.SuperOptions, "size=1024k") {
			b.Errorf("mounted: %+v", e)
		}
		if want := noswapWorks(b); slices.Contains(e.SuperOptions, "noswap") != want {
			b.Errorf("noswap should be %v: %v", want, e.SuperOptions)
		}

		full := filepath.Join(b.dir, "full")
		if err := os.WriteFile(full, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
			b.Errorf("writing more than the limit: %v", err)
		}
		// What is there needs the old size; then it gets a larger one.
		o.SizeBytes = 4096
		if err := emptydirs.SetUp(b.Context(), b.v, b.dir, o); err == nil || volume.IsUncertain(err) {
			b.Errorf("shrinking below the use: %v", err)
		}
		o.SizeBytes = 4 << 20
		b.setUp(o)
		if err := os.WriteFile(full, make([]byte, 2<<20), 0o600); err != nil {
			b.Errorf("after the limit was raised: %v", err)
		}
		if after := b.mounts()[0]; slices.Contains(after.SuperOptions, "noswap") != slices.Contains(e.SuperOptions, "noswap") {
			b.Errorf("raising the limit changed noswap: %v", after.SuperOptions)
		}
		b.wantMode(0o777 | fs.ModeSetgid | fs.ModeSticky)

		b.tearDown(false)
		b.wantNothing()
		b.tearDown(false)
	})
}

// noswapWorks asks the kernel directly.
func noswapWorks(b *bench) bool {
	dir := b.TempDir()
	err := unix.Mount("probe", dir, "tmpfs", 0, "noswap")
	if err == nil {
		if err := unix.Unmount(dir, 0); err != nil {
			b.Fatal(err)
		}
	}
	return err == nil
}

func TestKernelBusyAndStacked(t *testing.T) {
	onKernel(t, func(b *bench) {
		b.setUp(emptydirs.Options{Medium: v1.StorageMediumMemory})
		if err := unix.Mount("other", b.dir, "tmpfs", 0, ""); err != nil {
			b.Fatal(err)
		}
		b.wantMounts(2)
		f, err := os.Create(filepath.Join(b.dir, "open"))
		if err != nil {
			b.Fatal(err)
		}
		if err := emptydirs.TearDown(b.Context(), b.v, b.dir, false, nil); !errors.Is(err, mount.ErrBusy) {
			b.Errorf("TearDown = %v, want busy", err)
		}
		b.wantMounts(2)
		b.wantReady(true, false)
		f.Close()
		b.tearDown(false)
		b.wantNothing()
	})
}

// A volume that some forgotten mount shows must survive.
func TestKernelNestedMountSurvives(t *testing.T) {
	onKernel(t, func(b *bench) {
		b.setUp(emptydirs.Options{})
		other := b.TempDir()
		precious := filepath.Join(other, "precious")
		if err := os.WriteFile(precious, []byte("data"), 0o600); err != nil {
			b.Fatal(err)
		}
		nested := filepath.Join(b.dir, "a", "nested")
		if err := os.MkdirAll(nested, 0o755); err != nil {
			b.Fatal(err)
		}
		if err := unix.Mount(other, nested, "", unix.MS_BIND, ""); err != nil {
			b.Fatal(err)
		}
		err := emptydirs.TearDown(b.Context(), b.v, b.dir, false, nil)
		if _, ok := errors.AsType[*emptydirs.NestedMountError](err); !ok {
			b.Errorf("TearDown = %v", err)
		}
		b.wantData(precious)

		// The same, found in what an interrupted teardown left.
		doomed := filepath.Join(filepath.Dir(b.dir), "deleting~vol")
		if err := os.Rename(b.dir, doomed); err != nil {
			b.Fatal(err)
		}
		err = emptydirs.TearDown(b.Context(), b.v, b.dir, false, nil)
		if _, ok := errors.AsType[*removetree.MountError](err); !ok {
			b.Errorf("TearDown = %v", err)
		}
		b.wantData(precious)
		if err := unix.Unmount(filepath.Join(doomed, "a", "nested"), 0); err != nil {
			b.Fatal(err)
		}
		b.tearDown(false)
		b.wantNothing()
		b.wantData(precious)
	})
}

func TestKernelHugePages(t *testing.T) {
	onKernel(t, func(b *bench) {
		o := emptydirs.Options{Medium: "HugePages-2Mi", SizeBytes: 4 << 20}
		if err := emptydirs.SetUp(b.Context(), b.v, b.dir, o); err != nil {
			// No huge pages of this size, or not in a user namespace.
			if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EPERM) {
				b.Fatal(err)
			}
			b.Logf("this kernel cannot: %v", err)
			b.wantNothing()
			return
		}
		b.setUp(o)
		b.wantMode(0o777)
		if got := emptydirs.MediumOf(b.mounts()[0]); len(b.mounts()) != 1 || got != o.Medium {
			b.Errorf("mounted: %+v", b.mounts())
		}
		b.tearDown(false)
		b.wantNothing()
	})
}
