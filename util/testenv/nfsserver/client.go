package nfsserver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Statd starts what the client of NFSv3 needs for locks, rpc.statd and the
// rpcbind that it registers with unless one runs; stop ends statd, and so does
// the end of the test. Without it nothing in the machine is a lock client. What
// both read in /etc is as it was before once the test has ended.
func Statd(t testing.TB, p Packages) (stop func()) {
	t.Helper()
	machine := place{}
	if answersAt(111) != nil {
		if err := p.configure(t, machine, "localhost"); err != nil {
			t.Fatal(err)
		}
		if _, err := startDaemon(t, machine, p, listens(111), "rpcbind", "-f"); err != nil {
			t.Fatal(err)
		}
	}
	d, err := startDaemon(t, machine, p, listens(20049), "rpc.statd", "-F", "--no-notify", "-p", "20049")
	if err != nil {
		t.Fatal(err)
	}
	return d.stop
}

// Helper gives the machine the NFS client's tools until the test ends: dir has
// mount.nfs, mount.nfs4, umount.nfs and umount.nfs4 for those who look there
// (host.Config's HelperDirs), and /sbin has them for mount(8), which looks
// nowhere else. Without it the machine has none, unless the host has.
func Helper(t testing.TB, p Packages) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"mount.nfs", "mount.nfs4", "umount.nfs", "umount.nfs4"} {
		if err := p.Wrap(name, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		link := filepath.Join("/sbin", name)
		if err := os.Symlink(filepath.Join(dir, name), link); errors.Is(err, fs.ErrExist) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(link) })
	}
	return dir
}

// DetachBelow has all that is mounted below a directory detached when the test
// ends, before the directory is removed, and with it what is mounted there, or
// never, since a server is silent. What a test unmounts itself is no longer
// there.
func DetachBelow(t testing.TB, dir string) (same string) {
	t.Helper()
	t.Cleanup(func() {
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
		if err != nil {
			t.Error(err)
		}
		for _, m := range slices.Backward(mounts) {
			if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				t.Errorf("detach %s: %v", m.Mountpoint, err)
			}
		}
	})
	return dir
}

// Hosts adds names to the machine's /etc/hosts until the test ends, for tools
// that resolve names themselves. They ask no name server until then, so that an
// unknown name is certain not to be there.
func Hosts(t testing.TB, addresses map[string]string) {
	t.Helper()
	var names []byte
	for name, address := range addresses {
		names = fmt.Appendf(names, "%s %s\n", address, name)
	}
	replace(t, "/etc/hosts", func(before []byte) []byte { return append(before, names...) })
	replace(t, "/etc/nsswitch.conf", func([]byte) []byte { return []byte("hosts: files\n") })
}

// replace changes a file until the test ends.
func replace(t testing.TB, file string, change func(before []byte) []byte) {
	t.Helper()
	before, err := os.ReadFile(file)
	restore := func() { os.WriteFile(file, before, 0o644) }
	switch {
	case errors.Is(err, fs.ErrNotExist):
		restore = func() { os.Remove(file) }
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(restore)
	if err := os.WriteFile(file, change(slices.Clone(before)), 0o644); err != nil {
		t.Fatal(err)
	}
}
