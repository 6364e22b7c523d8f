package sandbox_test

import (
	"errors"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// mountExt4 mounts a file system that every kernel with idmapped mounts has them
// for.
func mountExt4(t *testing.T, target string) {
	t.Helper()
	device := loopdev.New(t, 16<<20)
	testtool.Need(t, "mkfs.ext4")
	if out, err := exec.Command("mkfs.ext4", "-q", device.Path).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := unix.Mount(device.Path, target, "ext4", 0, ""); err != nil {
		t.Fatal(err)
	}
}

// A volume of root's, as a pod in a user namespace sees it, and as a program of
// the host's.
func TestIDMappedMounts(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		source := t.TempDir()
		if hasAllIDs(t) {
			mountExt4(t, source)
		}
		write(t, source+"/file", "content")
		ids := []host.IDMapping{{ContainerID: 0, HostID: 100000, Size: 1000}}
		volume := sandbox.Mount{Volume: "data", Source: source, Destination: "/podvol", UIDMappings: ids, GIDMappings: ids}
		c := program(t, "stat:/podvol/file", "write:/podvol/new", "stat:/podvol/new")
		c.Mounts = append(c.Mounts, volume)
		if !hasAllIDs(t) {
			e := fails(t, c)
			if !errors.Is(e, sandbox.ErrIDMap) || e.Volume != "data" || e.Advice == "" {
				t.Errorf("an id map of ids that are not there: %v", e)
			}
			return
		}
		s, _ := run(t, c)
		if want := []string{"100644 100000:100000", "EOVERFLOW", "ENOENT"}; !slices.Equal(s.Results, want) {
			t.Errorf("results %q, want %q", s.Results, want)
		}
		for _, withRoot := range []bool{false, true} {
			inside := c
			inside.Mounts = slices.Clone(c.Mounts)
			if withRoot {
				inside = inRoot(t, inside, mkdir(t, t.TempDir()+"/root"))
			}
			inside.UserNamespace = &sandbox.UserNamespace{UIDMappings: ids, GIDMappings: ids}
			s, _ = run(t, inside)
			if want := []string{"100644 0:0", "written", "100644 0:0"}; !slices.Equal(s.Results, want) {
				t.Errorf("results %q, want %q", s.Results, want)
			}
			var st unix.Stat_t
			if err := unix.Stat(source+"/new", &st); err != nil || st.Uid != 0 || st.Gid != 0 {
				t.Errorf("the new file belongs to %d:%d, %v", st.Uid, st.Gid, err)
			}
			if err := os.Remove(source + "/new"); err != nil {
				t.Error(err)
			}
		}
		c.Mounts[1].Source = "/proc/sys"
		e := fails(t, c)
		refused, ok := errors.AsType[*host.IDMapError](e)
		if !errors.Is(e, sandbox.ErrIDMap) || !ok || refused.FSType != "proc" {
			t.Errorf("an id map for proc: %v", e)
		}
	})
}
