package host

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// obligingKernel mounts a tmpfs for each NFS, but for one call.
type obligingKernel struct {
	mountapi.Calls
	begun, made int
	fsmount     error
	propagation error
}

func (k *obligingKernel) Fsopen(string) (int, error) {
	k.begun++
	return k.Calls.Fsopen("tmpfs")
}
func (k *obligingKernel) SetFlag(int, string) error           { return nil }
func (k *obligingKernel) SetString(int, string, string) error { return nil }

func (k *obligingKernel) Fsmount(context int, attributes uint64) (int, error) {
	if k.fsmount != nil {
		return -1, k.fsmount
	}
	k.made++
	return k.Calls.Fsmount(context, attributes)
}

func (k *obligingKernel) MountSetattr(mount int, recursive bool, a unix.MountAttr) error {
	if a.Propagation != 0 && k.propagation != nil {
		return k.propagation
	}
	return k.Calls.MountSetattr(mount, recursive, a)
}

func (k *obligingKernel) Mount(source, target, fstype string, flags uintptr, data string) error {
	if flags&unix.MS_PRIVATE != 0 && k.propagation != nil {
		return k.propagation
	}
	return k.Calls.Mount(source, target, fstype, flags, data)
}

// heldCalls unmounts nothing.
type heldCalls struct{}

func (heldCalls) ask(string) error { return nil }

func (c heldCalls) unmountOnce(target string, flags int) error { return c.unmount(target, flags) }

func (heldCalls) unmount(string, int) error { return unix.EBUSY }

// What this node refuses is not taken for the server's word: no other version
// is tried, least of all over a mount that could not be undone.
func TestOnlyTheServerRefusesAnNFSVersion(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		for name, tc := range map[string]struct {
			kernel obligingKernel
			stuck  bool
			cause  mount.Cause
		}{
			"no descriptor left":                 {kernel: obligingKernel{fsmount: unix.EMFILE}, cause: mount.ErrUnknown},
			"no right to its own mount":          {kernel: obligingKernel{fsmount: unix.EPERM}, cause: mount.ErrNotPermitted},
			"propagation, without right":         {kernel: obligingKernel{propagation: unix.EPERM}, cause: mount.ErrNotPermitted},
			"propagation":                        {kernel: obligingKernel{propagation: unix.EINVAL}},
			"propagation, and the mount stays":   {kernel: obligingKernel{propagation: unix.EINVAL}, stuck: true},
			"no right to it and the mount stays": {kernel: obligingKernel{propagation: unix.EPERM}, stuck: true},
		} {
			m := New(Config{Via: ViaSystemCalls})
			tc.kernel.Calls = mountapi.Kernel{}
			m.api = &tc.kernel
			if tc.stuck {
				m.sys = heldCalls{}
			}
			target := t.TempDir()
			err := m.MountContext(t.Context(), mount.Request{Source: "10.0.0.1:/e", Target: target, FSType: "nfs", Options: []string{"proto=rdma", "private"}})
			e, ok := errors.AsType[*mount.Error](err)
			if !ok || e.Uncertain != tc.stuck || tc.cause != "" && e.Cause != tc.cause || errors.Is(err, mount.ErrAccessDenied) {
				t.Errorf("%s: %v", name, err)
			}
			// The first is to see whether the kernel has NFS.
			if tc.kernel.begun != 2 || tc.kernel.made > 1 {
				t.Errorf("%s: begun %d times, made %d times", name, tc.kernel.begun-1, tc.kernel.made)
			}
			_, there, tableErr := mounttable.Uncached{}.At(target)
			if tableErr != nil || there != tc.stuck {
				t.Errorf("%s: mounted = %v, %v", name, there, tableErr)
			}
			if there {
				if err := unix.Unmount(target, 0); err != nil {
					t.Errorf("%s: more than one mount: %v", name, err)
				}
				if _, again, _ := (mounttable.Uncached{}).At(target); again {
					t.Errorf("%s: another mount lies below", name)
				}
			}
		}
	})
}
