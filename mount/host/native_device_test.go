package host_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// noCommand is a choosing mounter whose mount(8) fails the test.
func noCommand(t *testing.T, via host.Via) *host.Mounter {
	t.Helper()
	started := filepath.Join(t.TempDir(), "started")
	t.Cleanup(func() {
		if _, err := os.Stat(started); err == nil {
			t.Error("a process was started")
		}
	})
	return host.New(host.Config{Via: via, MountCommand: fakeCommand(t, "echo \"$@\" >>"+started+"; exit 1\n")})
}

// formatted is a loop device with a new file system.
func formatted(t *testing.T, fstype string) *loopdev.Device {
	t.Helper()
	size, command := int64(16<<20), []string{"mkfs.ext4", "-q"}
	switch fstype {
	case "xfs":
		size, command = 320<<20, []string{"mkfs.xfs", "-q"}
	case "btrfs":
		size, command = 128<<20, []string{"mkfs.btrfs", "-q"}
	}
	testtool.Need(t, command[0])
	device := loopdev.New(t, size)
	out, err := exec.CommandContext(t.Context(), command[0], append(command[1:], device.Path)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", command[0], err, out)
	}
	return device
}

func TestDeviceFilesystems(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		if inUserNamespace(t) {
			err := mounttest.WithSystemCalls().Mount("/dev/loop0", t.TempDir(), "ext4", nil)
			if !errors.Is(err, mount.ErrNotPermitted) && !errors.Is(err, mount.ErrNoSource) {
				t.Errorf("a device in a user namespace: %v", err)
			}
			return
		}
		for _, tc := range []struct{ fstype, option, shown string }{
			{"ext4", "errors=remount-ro", "errors=remount-ro"},
			{"xfs", "nouuid", "nouuid"},
			{"btrfs", "compress=zlib", "compress=zlib:3"},
		} {
			t.Run(tc.fstype, func(t *testing.T) { mountDevice(t, tc.fstype, tc.option, tc.shown) })
		}
	})
}

func mountDevice(t *testing.T, fstype, option, shown string) {
	m := noCommand(t, host.ViaBest)
	device := formatted(t, fstype)
	dir := t.TempDir()
	link := filepath.Join("/dev", "podvol-test-"+filepath.Base(device.Path))
	if err := os.Symlink(device.Path, link); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(link)
	if err := m.Mount(link, dir, fstype, []string{"nosuid", "noatime", option}); err != nil {
		t.Fatal(err)
	}
	e, ok := mounttest.EntryAt(t, dir)
	if !ok || e.Source != device.Path || e.FSType != fstype || !slices.Contains(e.Options, "nosuid") || !slices.Contains(e.SuperOptions, shown) {
		t.Errorf("mounted: %v, as %+v", ok, e)
	}
	testtool.WriteFile(t, "content", dir, "file")
	if err := m.Mount(device.Path, dir, fstype, nil); !errors.Is(err, mount.ErrBusy) {
		t.Errorf("mounted on itself: %v", err)
	}
	other := t.TempDir()
	if err := m.Mount(device.Path, other, fstype, nil); err != nil {
		t.Errorf("mounted a second time: %v", err)
	} else if got, err := os.ReadFile(filepath.Join(other, "file")); err != nil || string(got) != "content" {
		t.Errorf("the second mount reads %q, %v", got, err)
	}
	if err := m.Mount("", dir, fstype, []string{"remount", "ro"}); err != nil {
		t.Error(err)
	}
	if e, _ := mounttest.EntryAt(t, other); !slices.Contains(e.SuperOptions, "ro") {
		t.Errorf("the file system is not read-only: %+v", e)
	}
	for _, target := range []string{dir, other} {
		if err := mounttest.Unmount(t, target); err != nil {
			t.Error(err)
		}
	}
}

// Why a device is not mounted is told by cause, option and the kernel's words.
func TestDeviceRefusals(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		if inUserNamespace(t) {
			return // no device file systems there, which TestDeviceFilesystems asserts
		}
		ext4, blank := formatted(t, "ext4"), loopdev.New(t, 16<<20)
		protected := loopdev.Of(t, ext4.Backing, unix.LO_FLAGS_READ_ONLY)
		regular := testtool.WriteFile(t, "no device", t.TempDir(), "file")
		damaged := formatted(t, "ext4")
		// The superblock's magic stays, what it counts does not.
		damage(t, damaged.Path, 1024+4, bytes.Repeat([]byte{0xff}, 16))
		for name, tc := range map[string]struct {
			source, fstype string
			options        []string
			want           error
			option, kernel string
		}{
			"missing":          {source: "/dev/no-such-device", fstype: "ext4", want: mount.ErrNoSource},
			"no device":        {source: regular, fstype: "ext4", want: mount.ErrNoSource},
			"character device": {source: "/dev/null", fstype: "ext4", want: mount.ErrNoSource},
			"directory":        {source: "/dev", fstype: "ext4", want: mount.ErrNoSource},
			"other type":       {source: ext4.Path, fstype: "xfs", want: mount.ErrWrongFilesystem},
			"blank":            {source: blank.Path, fstype: "ext4", want: mount.ErrWrongFilesystem},
			"blank xfs":        {source: blank.Path, fstype: "xfs", want: mount.ErrWrongFilesystem},
			"blank btrfs":      {source: blank.Path, fstype: "btrfs", want: mount.ErrWrongFilesystem},
			"write-protected":  {source: protected.Path, fstype: "ext4", want: mount.ErrReadOnlyDevice},
			"damaged":          {source: damaged.Path, fstype: "ext4", want: mount.ErrNeedsFsck},
			"unknown option":   {source: ext4.Path, fstype: "ext4", options: []string{"nosuid", "colour=blue"}, want: mount.ErrBadOption, option: "colour=blue", kernel: "Unknown parameter 'colour'"},
			"unknown flag":     {source: ext4.Path, fstype: "ext4", options: []string{"colourful"}, want: mount.ErrBadOption, option: "colourful", kernel: "colourful"},
			"bad value":        {source: ext4.Path, fstype: "ext4", options: []string{"errors=laugh"}, want: mount.ErrBadOption, option: "errors=laugh", kernel: "errors"},
			"no such type":     {source: ext4.Path, fstype: "no-such-type", want: mount.ErrNoFilesystem},
		} {
			target := t.TempDir()
			err := noCommand(t, host.ViaSystemCalls).Mount(tc.source, target, tc.fstype, tc.options)
			e, ok := errors.AsType[*mount.Error](err)
			if !ok || !errors.Is(err, tc.want) || e.Uncertain || e.Option != tc.option || !strings.Contains(e.Kernel, tc.kernel) {
				t.Errorf("%s: want %v: %#v: %v", name, tc.want, e, err)
			}
			if _, mounted := mounttest.EntryAt(t, target); mounted {
				t.Errorf("%s: mounted all the same", name)
			}
		}
		// Read-only is what a protected device can do.
		if err := mounttest.WithSystemCalls().Mount(protected.Path, t.TempDir(), "ext4", []string{"ro"}); err != nil {
			t.Errorf("a protected device read-only: %v", err)
		}
	})
}

func damage(t *testing.T, path string, offset int64, with []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(with, offset); err != nil {
		t.Fatal(err)
	}
}

// mount(8) finds a loop device for the image of a disk.
func TestImageFile(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		if inUserNamespace(t) {
			return // it would need a device
		}
		testtool.Need(t, "mount")
		image := formatted(t, "ext4").Backing
		dir := t.TempDir()
		if err := host.New(host.Config{}).Mount(image, dir, "ext4", nil); err != nil {
			t.Fatal(err)
		}
		if e, ok := mounttest.EntryAt(t, dir); !ok || e.FSType != "ext4" || !strings.HasPrefix(e.Source, "/dev/loop") {
			t.Errorf("mounted: %v, as %+v", ok, e)
		}
		if err := mounttest.Unmount(t, dir); err != nil {
			t.Error(err)
		}
	})
}

func TestOverlay(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(top, "size=1m"))
		lower, upper, work, dir := testtool.MkdirAll(t, top, "lower"), testtool.MkdirAll(t, top, "upper"), testtool.MkdirAll(t, top, "work"), testtool.MkdirAll(t, top, "dir")
		testtool.WriteFile(t, "below", lower, "file")
		m := noCommand(t, host.ViaBest)
		err := m.Mount("overlay", dir, "overlay", []string{"lowerdir=" + lower, "upperdir=" + upper, "workdir=" + work, "nodev"})
		if err != nil {
			t.Fatal(err)
		}
		testtool.WriteFile(t, "above", dir, "file")
		for path, want := range map[string]string{lower + "/file": "below", upper + "/file": "above", dir + "/file": "above"} {
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Errorf("%s reads %q, %v", path, got, err)
			}
		}
		err = m.Mount("overlay", testtool.MkdirAll(t, top, "other"), "overlay", []string{"lowerdir=" + top + "/missing", "upperdir=" + upper, "workdir=" + work})
		if err == nil {
			t.Error("an overlay of a missing directory is mounted")
		}
	})
}

func TestProc(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		err := noCommand(t, host.ViaBest).Mount("proc", dir, "proc", []string{"nosuid", "nodev", "noexec", "hidepid=invisible"})
		if inUserNamespace(t) { // the processes are another namespace's
			if e, ok := errors.AsType[*mount.Error](err); !ok || !errors.Is(err, mount.ErrNotPermitted) || e.Uncertain {
				t.Errorf("err = %v", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := mounttest.EntryAt(t, dir); !ok || e.FSType != "proc" || !slices.Contains(e.SuperOptions, "hidepid=invisible") {
			t.Errorf("mounted: %v, as %+v", ok, e)
		}
		if _, err := os.Stat(filepath.Join(dir, "self", "status")); err != nil {
			t.Error(err)
		}
	})
}
