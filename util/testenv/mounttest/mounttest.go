// Package mounttest mounts for tests: in memory, and for real within a mount namespace
// of their own.
package mounttest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// NewFake returns a fake, which is closed at the end of the test, and a directory
// with the given directories in it.
func NewFake(t testing.TB, dirs ...string) (*fakemount.Mounter, string) {
	t.Helper()
	f := fakemount.New()
	root, err := filepath.EvalSymlinks(t.TempDir())
	testtool.Must(t, err)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	for _, dir := range dirs {
		testtool.Must(t, os.MkdirAll(filepath.Join(root, dir), 0o750))
	}
	return f, root
}

// Mount mounts with the host's mounter.
func Mount(t testing.TB, r mount.Request) {
	t.Helper()
	MountBy(t, host.New(host.Config{}), r)
}

// MountBy mounts with a mounter.
func MountBy(t testing.TB, m mount.Interface, r mount.Request) {
	t.Helper()
	testtool.Must(t, mount.Mount(t.Context(), m, r))
}

// Unmount unmounts with the host's mounter, by the normal rung.
func Unmount(t testing.TB, target string) error {
	t.Helper()
	rung, err := mount.Unmount(t.Context(), host.New(host.Config{}), target, mount.UnmountOptions{})
	if rung != mount.RungNormal {
		t.Errorf("the rung is %v", rung)
	}
	return err
}

// EntryAt returns what the kernel has mounted at a path.
func EntryAt(t testing.TB, target string) (mount.Entry, bool) {
	t.Helper()
	mounts := table.Kernel()
	e, ok, err := mounts.At(target)
	testtool.Must(t, err)
	return e, ok
}

// Tmpfs asks for a tmpfs.
func Tmpfs(target string, options ...string) mount.Request {
	return mount.Request{Source: "tmpfs", Target: target, FSType: "tmpfs", Options: options}
}

// MountTmpfs mounts a tmpfs at a directory until the end of the test.
func MountTmpfs(t testing.TB, dir string) {
	t.Helper()
	mountForTest(t, Tmpfs(dir))
}

// MountExt4 mounts a new ext4 of 16 MiB at a directory until the end of the test. It needs
// root outside of user namespaces, and mkfs.ext4: see [testtool.Need].
func MountExt4(t testing.TB, dir string) {
	t.Helper()
	testtool.Need(t, "mkfs.ext4")
	device := loopdev.New(t, 16<<20)
	if out, err := exec.Command("mkfs.ext4", "-q", device.Path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	mountForTest(t, mount.Request{Source: device.Path, Target: dir, FSType: "ext4"})
}

func mountForTest(t testing.TB, r mount.Request) {
	t.Helper()
	Mount(t, r)
	t.Cleanup(func() {
		// Not by Unmount: the test's context has ended.
		if err := unix.Unmount(r.Target, 0); err != nil {
			t.Error(err)
		}
	})
}

// WithSystemCalls returns a mounter that starts no process.
func WithSystemCalls() *host.Mounter { return host.New(host.Config{Via: host.ViaSystemCalls}) }
