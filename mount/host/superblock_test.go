package host_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// wantAlive fails the test unless it is known whether the file system lives.
func wantAlive(t *testing.T, s table.Superblock, want bool) {
	t.Helper()
	if alive, known := s.Alive(); alive != want || !known {
		t.Errorf("Alive = %v, known %v; want %v", alive, known, want)
	}
}

func TestSuperblockOutlivesALazyUnmount(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		target, other := t.TempDir(), t.TempDir()
		s, _ := withStuckProcess(t, target)
		m := host.New(host.Config{})
		entry, _ := mounttest.EntryAt(t, target)
		superblock := table.SuperblockOf(m, entry)
		wantAlive(t, superblock, true)
		if rung, err := m.UnmountContext(t.Context(), target, mount.UnmountOptions{LazyAfter: 50 * time.Millisecond}); rung != mount.RungLazy || err != nil {
			t.Fatal(rung, err)
		}
		wantAlive(t, superblock, true)
		recalled := table.SuperblockByKey(m, superblock.Key())
		wantAlive(t, recalled, true)
		anotherBoot := strings.Split(superblock.Key(), " ")
		anotherBoot[1] = "another-boot"
		wantAlive(t, table.SuperblockByKey(m, strings.Join(anotherBoot, " ")), false)
		s.Close() // and the process fails, and ends
		for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			if alive, _ := superblock.Alive(); !alive {
				break
			}
			if time.Since(start) > time.Minute {
				t.Fatal("nobody uses the file system, and it seems to live")
			}
		}
		// Its number may be another's now.
		mountSilentFUSE(t, other)
		wantAlive(t, superblock, false)
		wantAlive(t, recalled, false)
	})
}

func TestSuperblockOfWhichNothingIsKnown(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		target := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(target))
		entry, _ := mounttest.EntryAt(t, target)
		m := host.New(host.Config{})
		onDisk := entry
		onDisk.Device = unix.Mkdev(7, 0) // whose directory is the device's
		for name, s := range map[string]table.Superblock{"tmpfs": table.SuperblockOf(m, entry), "block device": table.SuperblockOf(m, onDisk), "zero value": {}} {
			for _, s := range []table.Superblock{s, table.SuperblockByKey(m, s.Key())} {
				if alive, known := s.Alive(); alive || known {
					t.Errorf("%s: Alive = %v, known %v", name, alive, known)
				}
			}
		}
		for _, key := range []string{"", "kernel", "fake 7", table.SuperblockOf(m, entry).Key() + " ../../x 1", table.SuperblockOf(m, entry).Key() + " 0:9 x"} {
			if alive, known := table.SuperblockByKey(m, key).Alive(); alive || known {
				t.Errorf("key %q: Alive = %v, known %v", key, alive, known)
			}
		}
	})
}

func TestFakeInUse(t *testing.T) {
	f, root := mounttest.NewFake(t, "v", "w")
	v, w := filepath.Join(root, "v"), filepath.Join(root, "w")
	mounttest.MountBy(t, f, mount.Request{Source: "server:/x", Target: v, FSType: "nfs"})
	mounttest.MountBy(t, f, mount.Request{Source: "server:/x", Target: w, FSType: "nfs"})
	entry, _, err := f.Table().At(v)
	if err != nil {
		t.Fatal(err)
	}
	superblock := table.SuperblockOf(f, entry)
	if _, err := f.Use(root); !errors.Is(err, unix.EINVAL) {
		t.Errorf("Use of what is not mounted: %v", err)
	}
	done, err := f.Use(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Unmount(v); !errors.Is(err, mount.ErrBusy) {
		t.Errorf("Unmount = %v", err)
	}
	if rung, err := f.UnmountContext(t.Context(), v, mount.UnmountOptions{LazyAfter: time.Nanosecond}); rung != mount.RungLazy || err != nil {
		t.Fatal(rung, err)
	}
	if err := f.Unmount(w); err != nil {
		t.Error(err)
	}
	recalled := table.SuperblockByKey(f, superblock.Key())
	wantAlive(t, superblock, true)
	wantAlive(t, recalled, true)
	done()
	done()
	wantAlive(t, superblock, false)
	wantAlive(t, recalled, false)
}
