package mount_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
)

// newFake returns a fake and a directory with the given directories in it.
func newFake(t testing.TB, dirs ...string) (*mount.FakeMounter, string) {
	t.Helper()
	f := mount.NewFakeMounter()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	return f, root
}

func mustMount(t testing.TB, f *mount.FakeMounter, r mount.Request) {
	t.Helper()
	if err := f.MountContext(t.Context(), r); err != nil {
		t.Fatal(err)
	}
}

func mustUnmount(t testing.TB, f *mount.FakeMounter, target string) {
	t.Helper()
	if err := f.Unmount(target); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := []string{}
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return found
}

func TestFakeTmpfsIsFreshAndHides(t *testing.T) {
	f, root := newFake(t, "t")
	target := filepath.Join(root, "t")
	writeFile(t, filepath.Join(target, "hidden"), "x")
	mustMount(t, f, mount.Request{Source: "tmpfs", Target: target, FSType: "tmpfs"})
	info, err := os.Lstat(target)
	if err != nil || !info.IsDir() || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
		t.Fatalf("the root of tmpfs is %v, %v; want a directory drwxrwxrwt", info, err)
	}
	if got := names(t, target); len(got) != 0 {
		t.Fatalf("a new tmpfs shows %v", got)
	}
	writeFile(t, filepath.Join(target, "own"), "y")
	if err := unix.Rmdir(target); err == nil {
		t.Fatal("rmdir of a mount point succeeds")
	}
	mustUnmount(t, f, target)
	if got := names(t, target); len(got) != 1 || got[0] != "hidden" {
		t.Fatalf("after the unmount there is %v", got)
	}
	if info, err := os.Lstat(target); err != nil || info.Mode().Perm() != 0o750 {
		t.Fatalf("after the unmount the directory is %v, %v", info, err)
	}
}

func TestFakeNFSShowsItsServer(t *testing.T) {
	f, root := newFake(t, "a", "b", "export")
	f.Serve("server:/x", filepath.Join(root, "export"))
	for _, dir := range []string{"a", "b"} {
		mustMount(t, f, mount.Request{Source: "server:/x", Target: filepath.Join(root, dir), FSType: "nfs"})
	}
	writeFile(t, filepath.Join(root, "a", "file"), "data")
	if got := readFile(t, filepath.Join(root, "b", "file")); got != "data" {
		t.Errorf("the other mount shows %q", got)
	}
	if err := unix.Rmdir(filepath.Join(root, "a")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("rmdir of a mounted directory: %v", err)
	}
	for _, dir := range []string{"a", "b"} {
		mustUnmount(t, f, filepath.Join(root, dir))
		if got := names(t, filepath.Join(root, dir)); len(got) != 0 {
			t.Errorf("after the unmount %s holds %v", dir, got)
		}
	}
	if got := readFile(t, filepath.Join(root, "export", "file")); got != "data" {
		t.Errorf("the export holds %q", got)
	}
}
