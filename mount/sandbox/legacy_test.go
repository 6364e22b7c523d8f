package sandbox

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/util/testenv/nstest"
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

// Before Linux 5.6, or under a filter of system calls, there is no openat2(2),
// and nothing weaker stands in for it.
func TestWithoutOpenat2(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		denyOpenat2(t)
		o := order{Args: []string{"true"}, Mounts: []orderedMount{{Mount: Mount{Volume: "v", Source: t.TempDir(), Destination: "/proc"}}}}
		err := o.build(mountapi.Kernel{}, unix.PivotRoot)
		if err == nil || !errors.Is(err, ErrKernelTooOld) || err.Volume != "v" {
			t.Errorf("%v; want ErrKernelTooOld", err)
		}
	})
}

// denyOpenat2 answers openat2(2) with ENOSYS in all threads of this process,
// for good.
func denyOpenat2(t *testing.T) {
	t.Helper()
	const setModeFilter, syncThreads, allow, refuse = 1, 1, 0x7fff0000, 0x00050000
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the call's number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_OPENAT2, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: refuse | uint32(unix.ENOSYS)},
		{Code: unix.BPF_RET | unix.BPF_K, K: allow},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, syncThreads, uintptr(unsafe.Pointer(&filter))); errno != 0 {
		t.Fatalf("install a filter of system calls: %v", errno)
	}
}
