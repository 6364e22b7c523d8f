package mount_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// A descriptor as the source of a bind is what was opened, though its name has
// been given to something else since, with the flags of the mount that it was
// opened through: on the fake as in the kernel.
func TestBindOfADescriptor(t *testing.T) {
	t.Run("kernel", func(t *testing.T) {
		nstest.Run(t, func(t *testing.T) { testBindOfADescriptor(t, callsOnly(), callsOnly()) })
	})
	t.Run("fake", func(t *testing.T) {
		fake := mount.NewFakeMounter()
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
		for name, m := range map[string]mount.Interface{"ours": mount.New(mount.Config{Via: mount.ViaCommand}), "mount-utils": k8smount.New("")} {
			volume, target := t.TempDir(), t.TempDir()
			putFile(t, "wanted", makeDir(t, volume, "sub"), "file")
			file, err := os.OpenFile(filepath.Join(volume, "sub"), unix.O_PATH, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			doMount(t, tmpfsAt(volume))
			putFile(t, "other", makeDir(t, volume, "sub"), "file")
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
	table, err := mount.TableOf(of)
	if err != nil {
		t.Fatal(err)
	}
	top := t.TempDir()
	do := func(r mount.Request) {
		t.Helper()
		if err := m.MountContext(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = m.UnmountContext(t.Context(), r.Target, mount.UnmountOptions{}) })
	}
	plain := makeDir(t, top, "plain")
	guarded := makeDir(t, top, "guarded")
	do(tmpfsAt(guarded, "nosuid", "noexec"))
	for _, volume := range []string{plain, guarded} {
		makeDir(t, volume, "sub")
		putFile(t, "file", volume, "sub", "file")
		makeDir(t, volume, "other")
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
			makeDir(t, target)
			see = filepath.Join(target, "file")
		} else {
			putFile(t, "", target)
		}
		do(mount.Request{Source: fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), Target: target, Options: []string{"bind"}})
		if content, err := os.ReadFile(see); err != nil || string(content) != "file" {
			t.Errorf("%s of %s shows %q, %v", tc.path, tc.volume, content, err)
		}
		e, mounted, err := table.At(target)
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
