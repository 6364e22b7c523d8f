//go:build unix

package openat_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/openat"
)

func TestNoLinkIsFollowed(t *testing.T) {
	top := t.TempDir()
	for _, err := range []error{
		os.Mkdir(filepath.Join(top, "dir"), 0o755), os.WriteFile(filepath.Join(top, "dir", "file"), nil, 0o644),
		os.Symlink("dir", filepath.Join(top, "to-dir")), os.Symlink("file", filepath.Join(top, "dir", "to-file")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	parent, err := openat.Dir(nil, top)
	if err != nil {
		t.Fatal(err)
	}
	defer parent.Close()
	if _, err := openat.Dir(parent, "to-dir"); !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link to a directory: %v", err)
	}
	if _, err := openat.Dir(parent, "dir/file"); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("a file for a directory: %v", err)
	}
	dir, err := openat.File(parent, "dir", unix.O_DIRECTORY|unix.O_PATH, 0)
	if err != nil || dir.Name() != filepath.Join(top, "dir") {
		t.Fatalf("%v, %v", dir.Name(), err)
	}
	defer dir.Close()
	if _, err := openat.File(dir, "to-file", unix.O_RDONLY, 0); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link to a file: %v", err)
	}
	again, err := openat.Dir(dir, ".")
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	names, err := again.Readdirnames(-1)
	if slices.Sort(names); !slices.Equal(names, []string{"file", "to-file"}) {
		t.Errorf("opened again, it has %q, %v", names, err)
	}
	flags, err := unix.FcntlInt(again.Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("a child would inherit it: %#x, %v", flags, err)
	}
}

// A path with a link in it is never plain; one that was just passed is in the kernel's memory.
func TestIsPlain(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	dir, link := filepath.Join(top, "dir"), filepath.Join(top, "link")
	for _, err := range []error{os.Mkdir(dir, 0o755), os.Mkdir(filepath.Join(dir, "below"), 0o755), os.Symlink("dir", link), os.WriteFile(filepath.Join(top, "file"), nil, 0o644)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{link, filepath.Join(link, "below"), filepath.Join(top, "file"), filepath.Join(top, "missing"), filepath.Join(dir, "missing")} {
		if _, err := os.Stat(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if openat.IsPlain(path) {
			t.Errorf("%s is plain", path)
		}
	}
	// Another process that renames something may have the kernel look anew.
	known := func() bool {
		_, err := os.Stat(filepath.Join(dir, "below"))
		return err == nil && openat.IsPlain(filepath.Join(dir, "below"))
	}
	for tries := 0; openat.IsPlain("/") && !known(); tries++ { // a kernel without the call knows nothing
		if tries == 1000 {
			t.Fatal("a directory that was looked at is never plain")
		}
	}
	again, err := openat.Followed(link)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	names, err := again.Readdirnames(-1)
	if err != nil || !slices.Equal(names, []string{"below"}) {
		t.Errorf("a link that was followed has %q, %v", names, err)
	}
}
