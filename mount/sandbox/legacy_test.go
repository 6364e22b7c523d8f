package sandbox

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/util/nstest"
)

// without is a kernel that lacks a call.
type without struct {
	mountapi.Kernel
	call string
}

func (k without) OpenTree(dir int, path string, recursive bool) (int, error) {
	if k.call == "open_tree" {
		return -1, unix.ENOSYS
	}
	return k.Kernel.OpenTree(dir, path, recursive)
}

func (k without) MountSetattr(mount int, recursive bool, attributes unix.MountAttr) error {
	if k.call == "mount_setattr" {
		return unix.ENOSYS
	}
	return k.Kernel.MountSetattr(mount, recursive, attributes)
}

func (k without) MoveMount(mount, target int) error {
	if k.call == "move_mount" {
		return unix.ENOSYS
	}
	return k.Kernel.MoveMount(mount, target)
}

func (k without) Fsopen(fstype string) (int, error) {
	if k.call == "fsopen" {
		return -1, unix.ENOSYS
	}
	return k.Kernel.Fsopen(fstype)
}

func TestOldKernelsAreNamed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		o := order{Args: []string{"true"}, Mounts: []orderedMount{{Mount: Mount{Volume: "v", Source: t.TempDir(), Destination: "/podvol-missing"}}}}
		for _, call := range []string{"open_tree", "mount_setattr", "move_mount", "fsopen"} {
			err := o.build(without{call: call}, unix.PivotRoot)
			if err == nil || !errors.Is(err, ErrKernelTooOld) || err.Volume != "v" || err.Advice == "" {
				t.Errorf("without %s: %v", call, err)
			}
		}
	})
}

// The initial RAM disk cannot be exchanged; the new root is entered instead.
func TestARootThatCannotBeExchanged(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		source := t.TempDir()
		if err := os.WriteFile(source+"/key", []byte("value"), 0o644); err != nil {
			t.Fatal(err)
		}
		old, err := os.Open("/")
		if err != nil {
			t.Fatal(err)
		}
		defer old.Close()
		o := order{Args: []string{"true"}, Mounts: []orderedMount{{Mount: Mount{Source: source, Destination: "/podvol-missing/a"}}}}
		refused := 0
		failure := o.build(mountapi.Kernel{}, func(string, string) error { refused++; return unix.EINVAL })
		content, readErr := os.ReadFile("/podvol-missing/a/key")
		// Back to what the clean-up knows.
		if err := errors.Join(old.Chdir(), unix.Chroot(".")); err != nil {
			t.Fatal(err)
		}
		if failure != nil || refused != 1 || string(content) != "value" || readErr != nil {
			t.Errorf("%v, refused %d times; read %q, %v", failure, refused, content, readErr)
		}
		failure = o.build(mountapi.Kernel{}, func(string, string) error { return unix.EPERM })
		if failure == nil || !errors.Is(failure, ErrRoot) {
			t.Errorf("where it is not permitted: %v", failure)
		}
	})
}
