package host_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// cgroups mounts the cgroups of version 2 and returns a directory of them, for this test
// alone.
func cgroups(t *testing.T) string {
	t.Helper()
	top := t.TempDir()
	if err := unix.Mount("cgroup2", top, "cgroup2", 0, ""); err != nil {
		t.Skip("cgroups of version 2 cannot be mounted here:", err)
	}
	dir, err := os.MkdirTemp(top, "podvol-test-")
	if err != nil {
		t.Skip("cgroups cannot be made here:", err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A helper of a daemon runs in a cgroup beside the agent's where there is no systemd, others
// in the agent's. Nothing of it is left but where a daemon is.
func TestCgroupOfDaemons(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Host}, func(t *testing.T) {
		dir := cgroups(t)
		seen := t.TempDir()
		daemon := filepath.Join(seen, "daemon")
		command := fakeCommand(t, fmt.Sprintf("cp /proc/self/cgroup %s/cgroup\ncase \"$*\" in *leaves*) sleep 1000 >/dev/null 2>&1 & echo $! >%s;; esac\n", seen, daemon))
		config := node(t, command, []string{"fuse"}, nil)
		config.CgroupDir, config.SystemdDir = dir, t.TempDir()+"/missing"
		m := host.New(config)
		home := filepath.Join(dir, "podvol.mounts")
		own := func(fstype, source string) bool {
			t.Helper()
			if err := m.Mount(source, t.TempDir(), fstype, nil); err != nil {
				t.Fatal(err)
			}
			return strings.Contains(spied(t, seen, "cgroup"), "/podvol.mounts\n")
		}
		if own("nfs", "server:/e") {
			t.Error("the helper of a mount without a daemon runs in the daemons' cgroup")
		}
		if !own("fuse.sshfs", "src") {
			t.Error("the helper of a daemon runs in the agent's cgroup")
		}
		if _, err := os.Stat(home); !os.IsNotExist(err) {
			t.Errorf("a cgroup without a daemon is left: %v", err)
		}
		if !own("fuse.sshfs", "leaves") {
			t.Error("the helper of a daemon runs in the agent's cgroup")
		}
		procs, err := os.ReadFile(filepath.Join(home, "cgroup.procs"))
		if want := spied(t, seen, "daemon"); err != nil || string(procs) != want {
			t.Errorf("the daemons' cgroup has %q, %v, want %q", procs, err, want)
		}
		if err := os.WriteFile(filepath.Join(home, "cgroup.kill"), []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		for err = os.Remove(home); err != nil && t.Context().Err() == nil; err = os.Remove(home) {
			reap()
		}
	})
}

// reap takes note of the ends of processes that were left to process 1, which the test is.
func reap() {
	_, _ = eintr.Get(func() (int, error) { return unix.Wait4(-1, nil, unix.WNOHANG, nil) })
}

// What has no cgroups, or may make none, mounts all the same.
func TestDaemonsWithoutCgroups(t *testing.T) {
	for name, dir := range map[string]string{"no cgroups": t.TempDir(), "nothing": t.TempDir() + "/missing"} {
		t.Run(name, func(t *testing.T) {
			seen := t.TempDir()
			config := node(t, fakeCommand(t, spy(seen)), []string{"fuse"}, nil)
			config.CgroupDir, config.SystemdDir = dir, t.TempDir()+"/missing"
			if err := host.New(config).Mount("src", t.TempDir(), "fuse.sshfs", nil); err != nil {
				t.Fatal(err)
			}
			if ran := spied(t, seen, "cmdline"); !strings.Contains(ran, "fuse.sshfs") {
				t.Errorf("the command did not run: %q", ran)
			}
		})
	}
}
