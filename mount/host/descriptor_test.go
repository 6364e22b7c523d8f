package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// A descriptor as the source of a bind is what was opened, though its name has
// been given to something else since, with the flags of the mount that it was
// opened through: on the fake as in the kernel.
func TestBindOfADescriptor(t *testing.T) {
	t.Run("kernel", func(t *testing.T) {
		nstest.Run(t, func(t *testing.T) { testBindOfADescriptor(t, mounttest.WithSystemCalls(), mounttest.WithSystemCalls()) })
	})
	t.Run("fake", func(t *testing.T) {
		fake := fakemount.New()
		defer fake.Close()
		testBindOfADescriptor(t, fake, fake)
	})
}

// mount(8) does not look the descriptor's name up either, which leads to another
// file by then, be it run by this package's mounter or by mount-utils'.
func TestBindOfADescriptorByCommand(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		testtool.Need(t, "mount")
		for name, m := range map[string]mount.Interface{"ours": host.New(host.Config{Via: host.ViaCommand}), "mount-utils": host.Wrap(k8smount.New(""), nil)} {
			volume, target := t.TempDir(), t.TempDir()
			testtool.WriteFile(t, "wanted", testtool.MkdirAll(t, volume, "sub"), "file")
			file, err := os.OpenFile(filepath.Join(volume, "sub"), unix.O_PATH, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			mounttest.Mount(t, mounttest.Tmpfs(volume))
			testtool.WriteFile(t, "other", testtool.MkdirAll(t, volume, "sub"), "file")
			r := mount.Request{Source: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), Target: target, Options: []string{"bind"}}
			if err := mount.Mount(t.Context(), m, r); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if content, err := os.ReadFile(filepath.Join(target, "file")); err != nil || string(content) != "wanted" {
				t.Errorf("%s shows %q, %v", name, content, err)
			}
		}
	})
}

func testBindOfADescriptor(t *testing.T, m mount.ContextMounter, of mount.Interface) {
	mounts := table.Of(of)
	top := t.TempDir()
	do := func(r mount.Request) {
		t.Helper()
		if err := m.MountContext(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = m.UnmountContext(t.Context(), r.Target, mount.UnmountOptions{}) })
	}
	plain := testtool.MkdirAll(t, top, "plain")
	guarded := testtool.MkdirAll(t, top, "guarded")
	do(mounttest.Tmpfs(guarded, "nosuid", "noexec"))
	for _, volume := range []string{plain, guarded} {
		testtool.MkdirAll(t, volume, "sub")
		testtool.WriteFile(t, "file", volume, "sub", "file")
		testtool.MkdirAll(t, volume, "other")
	}
	for i, tc := range []struct {
		volume, path string
		flags        bool
	}{{plain, "sub", false}, {guarded, "sub", true}, {guarded, "sub/file", true}} {
		file, err := os.OpenFile(filepath.Join(tc.volume, tc.path), unix.O_PATH, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		sub, aside := filepath.Join(tc.volume, "sub"), filepath.Join(tc.volume, "aside")
		if err := os.Rename(sub, aside); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("other", sub); err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(top, fmt.Sprint("target-", i))
		see := target
		if tc.path == "sub" {
			testtool.MkdirAll(t, target)
			see = filepath.Join(target, "file")
		} else {
			testtool.WriteFile(t, "", target)
		}
		do(mount.Request{Source: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), Target: target, Options: []string{"bind"}})
		if content, err := os.ReadFile(see); err != nil || string(content) != "file" {
			t.Errorf("%s of %s shows %q, %v", tc.path, tc.volume, content, err)
		}
		e, mounted, err := mounts.At(target)
		if err != nil || !mounted || (slices.Contains(e.Options, "nosuid") && slices.Contains(e.Options, "noexec")) != tc.flags {
			t.Errorf("%+v, %v, %v", e, mounted, err)
		}
		if err := os.Remove(sub); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(aside, sub); err != nil {
			t.Fatal(err)
		}
	}
}
