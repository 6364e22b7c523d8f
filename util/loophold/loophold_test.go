package loophold

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// deniedToUsers asserts that ordinary users hold nothing, if the test runs as
// one.
func deniedToUsers(t *testing.T) bool {
	t.Helper()
	if strings.HasSuffix(t.Name(), "/root") {
		return false
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if device, err := Hold(path); !errors.Is(err, os.ErrPermission) && !errors.Is(err, ErrNoLoop) {
		t.Errorf("Hold = %q, %v", device, err)
	}
	return true
}

func TestHoldAndRelease(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if deniedToUsers(t) {
			return
		}
		disk := loopdev.New(t, 1<<20)
		point := filepath.Join(t.TempDir(), "uid")
		if err := os.WriteFile(point, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount(disk.Path, point, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		device, err := Hold(point)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Hold(point); again != device || err != nil {
			t.Errorf("held again: %q, %v; want %q", again, err, device)
		}
		if devices, err := Holding(point); err != nil || !slices.Equal(devices, []string{device}) {
			t.Errorf("Holding = %v, %v", devices, err)
		}
		if devices, err := Holding(disk.Path); err != nil || len(devices) != 0 {
			t.Errorf("holding the node itself: %v, %v", devices, err)
		}
		link := filepath.Join(t.TempDir(), "link")
		if err := os.Symlink(filepath.Dir(point), link); err != nil {
			t.Fatal(err)
		}
		if devices, err := Holding(filepath.Join(link, "uid")); err != nil || len(devices) != 1 {
			t.Errorf("holding it by another name: %v, %v", devices, err)
		}
		if err := unix.Unmount(point, 0); !errors.Is(err, unix.EBUSY) {
			t.Errorf("unmounting what is held: %v", err)
		}
		for range 2 {
			if err := Release(point); err != nil {
				t.Fatal(err)
			}
		}
		if devices, err := Holding(point); err != nil || len(devices) != 0 {
			t.Errorf("after Release: %v, %v", devices, err)
		}
		if err := unix.Unmount(point, 0); err != nil {
			t.Error(err)
		}
	})
}

// A hold whose bind mount somebody has detached is found and ended: the kernel
// has no path for it any more.
func TestReleaseAfterADetach(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if deniedToUsers(t) {
			return
		}
		disk, base := loopdev.New(t, 1<<20), t.TempDir()
		held := map[string]string{}
		for _, name := range []string{"one", "two"} {
			point := filepath.Join(base, name)
			if err := os.WriteFile(point, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mount(disk.Path, point, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			device, err := Hold(point)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := clearLoop(device); err != nil {
					t.Error(err)
				}
			})
			if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			held[point] = device
		}
		for point, device := range held {
			if devices, err := Holding(point); err != nil || !slices.Equal(devices, []string{device}) {
				t.Errorf("%s is held by %v, %v; want %s", point, devices, err, device)
			}
			if err := Release(point); err != nil {
				t.Error(err)
			}
			if devices, err := Holding(point); err != nil || len(devices) > 0 {
				t.Errorf("after Release: %v, %v", devices, err)
			}
		}
	})
}

// What kernels before 5.8 do is the same.
func TestConfigureOld(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if deniedToUsers(t) {
			return
		}
		disk := loopdev.New(t, 1<<20)
		file, err := os.Open(disk.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		control, err := os.OpenFile(controlPath, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer control.Close()
		name, err := tagOf(disk.Path)
		if err != nil {
			t.Fatal(err)
		}
		device, err := take(control, file, name, configureOld)
		for errors.Is(err, unix.EBUSY) {
			device, err = take(control, file, name, configureOld)
		}
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Hold(disk.Path); again != device || err != nil {
			t.Errorf("Hold = %q, %v; want %q", again, err, device)
		}
		if is := nameOf(device); is != name {
			t.Errorf("it calls itself %q", is)
		}
		readOnly, err := os.ReadFile(filepath.Join(sysBlock, filepath.Base(device), "ro"))
		if err != nil || string(readOnly) != "1\n" {
			t.Errorf("read-only: %q, %v", readOnly, err)
		}
		if err := Release(disk.Path); err != nil {
			t.Fatal(err)
		}
	})
}

func TestHoldingReadsSys(t *testing.T) {
	sys, dir := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "uid")
	for name, backing := range map[string]string{
		"loop0": path + "\n", "loop1": path + " (deleted)\n", "loop2": path + "x\n", "sda": path + "\n",
		"loop4": "/\n", "loop5": "/\n",
	} {
		if err := os.MkdirAll(filepath.Join(sys, name, "loop"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(sys, name, "loop", "backing_file"), []byte(backing), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(sys, "loop3"), 0o755); err != nil { // free
		t.Fatal(err)
	}
	nameOf := func(device string) tag {
		name, err := tagOf(path)
		if err != nil {
			t.Error(err)
		}
		if device != "/dev/loop4" {
			name[0] = 'x'
		}
		return name
	}
	devices, err := holding(sys, path, nameOf)
	if err != nil || !slices.Equal(devices, []string{"/dev/loop0", "/dev/loop1", "/dev/loop4"}) {
		t.Errorf("holding = %v, %v", devices, err)
	}
	if devices, err := holding(sys, filepath.Join(dir, "gone", "uid"), nameOf); err != nil || devices != nil {
		t.Errorf("of nothing: %v, %v", devices, err)
	}
}

func TestHoldOfNothing(t *testing.T) {
	if _, err := Hold(filepath.Join(t.TempDir(), "nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Hold = %v", err)
	}
}
