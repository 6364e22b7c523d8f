package fakemount_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// As with the kernel, a mount point is there all the time, and so is its parent,
// however often somebody tries to remove it while mounts come and go.
func TestFakeMountPointIsNeverMissing(t *testing.T) {
	for name, request := range map[string]mount.Request{
		"link":    {Source: "server:/x", FSType: "nfs"},
		"content": {Source: "tmpfs", FSType: "tmpfs"},
	} {
		t.Run(name, func(t *testing.T) {
			f, root := mounttest.NewFake(t, "parent/t")
			f.KeepIn(root)
			request.Target = filepath.Join(root, "parent/t")
			stop, tried := make(chan struct{}), make(chan error)
			t.Cleanup(func() { close(stop); <-tried })
			go func() {
				defer close(tried)
				for {
					err := errors.Join(missing(request.Target), removable(filepath.Dir(request.Target)))
					select {
					case <-stop:
						return
					case tried <- err:
						if err != nil {
							return
						}
					}
				}
			}()
			for range 300 {
				mounttest.MountBy(t, f, request)
				if err := <-tried; err != nil {
					t.Fatal(err)
				}
				mustUnmount(t, f, request.Target)
				if err := <-tried; err != nil {
					t.Fatal(err)
				}
			}
			if info, err := os.Lstat(request.Target); err != nil || !info.IsDir() {
				t.Errorf("what was hidden is not back: %v, %v", info, err)
			}
		})
	}
}

// Where nothing can be exchanged, since what is hidden is kept on another file
// system, mounts show and hide the same.
func TestFakeWithoutExchange(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		f, root := mounttest.NewFake(t, "kept", "t")
		kept, target := filepath.Join(root, "kept"), filepath.Join(root, "t")
		if err := unix.Mount("tmpfs", kept, "tmpfs", 0, "size=1m"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(f.Close(), unix.Unmount(kept, 0)); err != nil {
				t.Error(err)
			}
		})
		f.KeepIn(kept)
		writeFile(t, filepath.Join(target, "file"), "hidden")
		for _, r := range []mount.Request{
			{Source: "server:/x", Target: target, FSType: "nfs"},
			{Source: "tmpfs", Target: target, FSType: "tmpfs"},
		} {
			mounttest.MountBy(t, f, r)
			if got := names(t, target); len(got) != 0 {
				t.Errorf("%s shows %q", r.FSType, got)
			}
			mustUnmount(t, f, target)
			if got := readFile(t, filepath.Join(target, "file")); got != "hidden" {
				t.Errorf("after %s there is %q", r.FSType, got)
			}
		}
	})
}

func missing(name string) error {
	if _, err := os.Lstat(name); errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func removable(dir string) error {
	if err := unix.Rmdir(dir); !errors.Is(err, unix.ENOTEMPTY) {
		return &os.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}
