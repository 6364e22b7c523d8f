package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// shifted shows ids 0 to 999 of the disk as 100000 to 100999.
func shifted() host.IDMap {
	ids := []host.IDMapping{{ContainerID: 0, HostID: 100000, Size: 1000}}
	return host.IDMap{UIDs: ids, GIDs: []host.IDMapping{{ContainerID: 0, HostID: 200000, Size: 1000}}}
}

func ownersOf(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d:%d", st.Uid, st.Gid)
}

// asUser makes a file in a directory as another user, who may not be able to
// come there by its path.
func asUser(t *testing.T, uid, gid int, dir, name string) {
	t.Helper()
	cmd := exec.Command("setpriv", fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", gid), "--clear-groups", "sh", "-c", "echo content > "+name)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestIDMappedMountsOfEachFilesystem(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if !inInitialUserNamespace(t) {
			return // see TestIDMapsAreRefused
		}
		for _, fstype := range []string{"tmpfs", "ext4", "xfs", "btrfs"} {
			t.Run(fstype, func(t *testing.T) {
				volume, target := t.TempDir(), t.TempDir()
				mountOfType(t, fstype, volume)
				if err := os.WriteFile(volume+"/file", nil, 0o644); err != nil {
					t.Fatal(err)
				}
				for path, ids := range map[string][2]int{"": {7, 8}, "/file": {5, 6}} {
					if err := os.Chown(volume+path, ids[0], ids[1]); err != nil {
						t.Fatal(err)
					}
				}
				m := host.New(host.Config{})
				probed := m.ProbeIDMap(t.Context(), volume)
				if since := host.NewIDMapError(volume, nil).Since; kernelIsBefore(t, since) {
					e, ok := errors.AsType[*host.IDMapError](probed)
					if !ok || !strings.Contains(e.Reason, "needs Linux "+since) {
						t.Errorf("%v; want that it needs Linux %s", probed, since)
					}
					return
				}
				if probed != nil {
					t.Fatal(probed)
				}
				r := mount.Request{Source: volume, Target: target, Options: []string{"bind", "nosuid"}}
				if err := m.BindIDMapped(t.Context(), r, shifted()); err != nil {
					t.Fatal(err)
				}
				if got := ownersOf(t, target) + " " + ownersOf(t, target+"/file"); got != "100007:200008 100005:200006" {
					t.Errorf("the owners shown are %s", got)
				}
				asUser(t, 100007, 200008, target, "new")
				if shown, stored := ownersOf(t, target+"/new"), ownersOf(t, volume+"/new"); shown != "100007:200008" || stored != "7:8" {
					t.Errorf("a new file is shown as %s and stored as %s", shown, stored)
				}
				if err := os.WriteFile(target+"/rooted", nil, 0o644); !errors.Is(err, unix.EOVERFLOW) {
					t.Errorf("a file for an id that none is mapped to: %v", err)
				}
				if got := ownersOf(t, volume+"/file"); got != "5:6" {
					t.Errorf("the stored owners changed to %s", got)
				}
				e, _ := mounttest.EntryAt(t, target)
				if !slices.Contains(e.Options, "idmapped") || !slices.Contains(e.Options, "nosuid") {
					t.Errorf("the options are %v", e.Options)
				}
				again := mount.Request{Source: target, Target: t.TempDir(), Options: []string{"bind"}}
				wantIDMapError(t, m.BindIDMapped(t.Context(), again, shifted()), fstype, "already")
				if err := m.Unmount(target); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

func inInitialUserNamespace(t *testing.T) bool {
	t.Helper()
	content, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		t.Fatal(err)
	}
	return slices.Equal(strings.Fields(string(content)), []string{"0", "0", "4294967295"})
}

func kernelIsBefore(t *testing.T, version string) bool {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	var here, there [2]int
	for text, numbers := range map[string]*[2]int{unix.ByteSliceToString(name.Release[:]): &here, version: &there} {
		if _, err := fmt.Sscanf(text, "%d.%d", &numbers[0], &numbers[1]); err != nil {
			t.Fatalf("version %q: %v", text, err)
		}
	}
	return slices.Compare(here[:], there[:]) < 0
}

func mountOfType(t *testing.T, fstype, target string) {
	t.Helper()
	r := mounttest.Tmpfs(target)
	if fstype != "tmpfs" {
		testtool.Need(t, "mkfs."+fstype)
		device := loopdev.New(t, 512<<20)
		if out, err := exec.Command("mkfs."+fstype, device.Path).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		r = mount.Request{Source: device.Path, Target: target, FSType: fstype}
	}
	mounttest.Mount(t, r)
	t.Cleanup(func() {
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func wantIDMapError(t *testing.T, err error, fstype, reason string) {
	t.Helper()
	if !errors.Is(err, mount.ErrNoIDMap) {
		t.Errorf("%v; want ErrNoIDMap", err)
	}
	e, ok := errors.AsType[*host.IDMapError](err)
	if !ok || e.FSType != fstype || !strings.Contains(e.Reason, reason) {
		t.Errorf("%v; want an IDMapError about %s with %q", err, fstype, reason)
	}
}

// What cannot be mapped is refused, and neither mounted nor changed.
func TestIDMapsAreRefused(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := host.New(host.Config{})
		ids := shifted()
		if !inInitialUserNamespace(t) {
			ids = host.IDMap{UIDs: []host.IDMapping{{Size: 1}}, GIDs: []host.IDMapping{{Size: 1}}}
		}
		refused := func(source, fstype, reason string) {
			t.Helper()
			target := t.TempDir()
			wantIDMapError(t, m.BindIDMapped(t.Context(), mount.Request{Source: source, Target: target, Options: []string{"bind"}}, ids), fstype, reason)
			if e, mounted := mounttest.EntryAt(t, target); mounted && e.Target == target {
				t.Errorf("it was mounted: %v", e)
			}
			if err := m.ProbeIDMap(t.Context(), source); err == nil {
				t.Errorf("the probe of %s found nothing", source)
			}
		}
		refused("/proc/self/task", "proc", "cannot in any version") // below /proc nfsd may be mounted, and be locked
		if !inInitialUserNamespace(t) {
			source := t.TempDir() // of the host's, as in a rootless agent
			e := host.NewIDMapError(source, nil)
			if e.Since != "" && !kernelIsBefore(t, e.Since) {
				refused(source, e.FSType, "in a user namespace only")
			}
			err := m.BindIDMapped(t.Context(), mount.Request{Source: source, Target: t.TempDir(), Options: []string{"bind"}}, shifted())
			wantIDMapError(t, err, "", "no user namespace with these ids")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		target := t.TempDir()
		if err := m.BindIDMapped(ctx, mount.Request{Source: target, Target: target, Options: []string{"bind"}}, ids); !errors.Is(err, mount.ErrCanceled) {
			t.Errorf("with a context that has ended: %v", err)
		}
		for _, options := range [][]string{nil, {"bind", "remount"}, {"bind", "size=1k"}} {
			if err := m.BindIDMapped(t.Context(), mount.Request{Source: target, Target: target, Options: options}, ids); !errors.Is(err, mount.ErrBadOption) {
				t.Errorf("with %v: %v", options, err)
			}
		}
	})
}

func TestFUSEIsNotIDMappedUnlessItsServerOffersIt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		source := t.TempDir()
		mountSilentFUSE(t, source)
		ids := host.IDMap{UIDs: []host.IDMapping{{Size: 1}}, GIDs: []host.IDMapping{{Size: 1}}}
		m := host.New(host.Config{})
		err := m.BindIDMapped(t.Context(), mount.Request{Source: source, Target: t.TempDir(), Options: []string{"bind"}}, ids)
		wantIDMapError(t, err, "fuse.silent", "FUSE_ALLOW_IDMAP")
	})
}
