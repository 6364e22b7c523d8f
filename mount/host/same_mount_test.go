package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/internal/statmount"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// While an unmount waits for a busy mount to become free, somebody else
// unmounts it and mounts anew, and the kernel hands out the same id again: what
// is there now is left alone.
func TestUnmountLeavesTheMountThatCameAfterIt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		host := New(Config{})
		tellsApart, err := host.index.TellsApart()
		testtool.Must(t, err)
		for name, tc := range map[string]struct {
			kernel statmount.Kernel
			second string // its source
		}{
			"alike but for the source, no unique ids": {withoutList{}, "second"},
			"another source": {statmount.Host{}, "second"},
			"alike in all":   {statmount.Host{}, "first"},
		} {
			if tc.second == "first" && !tellsApart {
				continue // this kernel cannot tell them apart
			}
			t.Run(name, func(t *testing.T) {
				reused := false
				// Others who mount meanwhile may get the id.
				for began := time.Now(); !reused && time.Since(began) < time.Minute; {
					target := t.TempDir()
					testtool.Must(t, unix.Mount("first", target, "tmpfs", 0, ""))
					before := lineAt(t, target)
					m := New(Config{})
					m.index = mounttable.New(tc.kernel)
					m.table = m.index
					m.sys = &busyOnce{meanwhile: func() {
						testtool.Must(t, unix.Unmount(target, 0))
						testtool.Must(t, unix.Mount(tc.second, target, "tmpfs", 0, ""))
					}}
					if _, err := m.UnmountContext(t.Context(), target, mount.UnmountOptions{LazyAfter: time.Minute}); err != nil {
						t.Errorf("what was to be unmounted is gone: %v", err)
					}
					after := lineAt(t, target)
					reused = after.ID == before.ID
					testtool.Must(t, unix.Unmount(target, 0))
				}
				if !reused {
					t.Error("the kernel never handed an id out again, so nothing was tested")
				}
			})
		}
	})
}

// withoutList is a kernel without listmount(2).
type withoutList struct{ statmount.Host }

func (withoutList) List(uint64, []uint64) (int, error) {
	return 0, os.NewSyscallError("listmount", unix.ENOSYS)
}

// lineAt is the line of mountinfo for what must be mounted at target.
func lineAt(t *testing.T, target string) mount.Entry {
	t.Helper()
	e, ok, err := mounttable.Uncached{}.At(target)
	if err != nil || !ok {
		t.Fatalf("nothing is mounted at %s, %v", target, err)
	}
	return e
}

// exactScripted is a scripted kernel whose table tells mounts apart.
type exactScripted struct{ *scripted }

func (s exactScripted) AtExactly(path string) (mounttable.Sighting, bool, error) {
	e, ok, err := s.At(path)
	return mounttable.Sighting{Entry: e, Unique: uint64(e.ID)}, ok, err
}

func (s exactScripted) Sightings() ([]mounttable.Sighting, error) { return nil, nil }

// Who had to wait for another unmount of the same target does not go on with
// what lay beneath, however little time has passed.
func TestSecondUnmountLeavesWhatIsBeneath(t *testing.T) {
	for name, withEnd := range map[string]bool{"with a context that may end": true, "without end": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := context.Background()
				if withEnd {
					ctx = t.Context()
				}
				beneath := nfsEntry
				beneath.ID = 3
				free := make(chan struct{})
				k := &scripted{entries: []mount.Entry{beneath, nfsEntry}, umount: func(int) error { <-free; return nil }}
				m := k.mounter()
				m.table = exactScripted{k}
				done := make(chan error)
				for range 2 {
					go func() {
						_, err := m.UnmountContext(ctx, "/t", mount.UnmountOptions{})
						done <- err
					}()
					synctest.Wait() // the first is in the kernel, the second waits for it
				}
				close(free)
				for range 2 {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
				if e, ok, _ := k.At("/t"); !ok || e.ID != 3 || len(k.tried()) != 1 {
					t.Errorf("left is %+v, %v, after %d calls", e, ok, len(k.tried()))
				}
			})
		})
	}
}

// onDisk is a table in which everything is on a block device.
type onDisk struct{ mount.Table }

func (d onDisk) At(path string) (mount.Entry, bool, error) {
	e, ok, err := d.Table.At(path)
	e.Device = unix.Mkdev(8, 1)
	return e, ok, err
}

func (d onDisk) All() ([]mount.Entry, error) {
	all, err := d.Table.All()
	for i := range all {
		all[i].Device = unix.Mkdev(8, 1)
	}
	return all, err
}

// A mount that is detached again because it went astray may still be used by
// whoever entered it; only for a block device does that matter.
func TestDetachedBlockDeviceIsUncertain(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for name, lacking := range map[string]string{"new calls": "", "old call": "fsopen", "command": "all"} {
			t.Run(name, func(t *testing.T) {
				if lacking == "all" {
					testtool.Need(t, "mount")
				}
				for _, block := range []bool{false, true} {
					top := t.TempDir()
					good, evil, link := filepath.Join(top, "good"), filepath.Join(top, "evil"), filepath.Join(top, "link")
					for _, dir := range []string{good, evil} {
						testtool.Must(t, os.MkdirAll(filepath.Join(dir, "volume"), 0o755))
					}
					testtool.Must(t, os.Symlink(good, link))
					m := New(Config{Via: ViaSystemCalls})
					target := filepath.Join(good, "volume")
					if lacking == "all" {
						command := filepath.Join(top, "mount")
						testtool.Must(t, os.WriteFile(command, []byte("#!/bin/sh\nln -sfn "+evil+" "+link+"; exec mount \"$@\"\n"), 0o755))
						m = New(Config{Via: ViaCommand, MountCommand: command})
						target = link + "/volume"
					}
					m.api = hooked{kernel: mountapi.Kernel{}, before: func(call string) error {
						switch call {
						case lacking:
							return unix.ENOSYS
						case "move_mount", "mount":
							testtool.Must(t, os.Rename(target, target+"-moved"))
							testtool.Must(t, os.Mkdir(target, 0o755))
						}
						return nil
					}}
					if block {
						m.table = onDisk{m.table}
					}
					err := m.MountContext(t.Context(), mount.Request{Source: "x", Target: target, FSType: "tmpfs"})
					if e, ok := errors.AsType[*mount.Error](err); !ok || !errors.Is(err, mount.ErrTargetReplaced) || e.Uncertain != block {
						t.Errorf("%s, block device %v: %v", name, block, err)
					}
					left, err := mount.Below(mounttable.Uncached{}, top)
					if err != nil || len(left) > 0 {
						t.Errorf("%s: left are %v, %v", name, left, err)
					}
				}
			})
		}
	})
}
