package flexvolume_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
)

// lifeVar has TestAnAgentThatDies be the one: its root, the drivers, the data and a pipe.
const lifeVar = "PODVOL_TEST_FLEX_LIFE"

// volumesOf are the volumes of an agent that dies: of a driver that mounts for each pod, and of
// one that attaches and mounts once for the node.
func volumesOf(data, hold string) (tmpfs, disk *volume.Spec) {
	return pv("tmpfs", "example.com/tmpfs", map[string]string{"hold": hold}), pv("disk", "example.com/disk", map[string]string{"dir": data})
}

func live(t *testing.T, given []string) {
	b := &bench{T: t, Host: fakehost.NewOnKernel(t, host.New(host.Config{})), drivers: given[1]}
	b.RootDir = given[0]
	b.restart()
	tmpfs, disk := volumesOf(given[2], given[3])
	b.wantFile(filepath.Join(b.mustSetUp(tmpfs, "a"), "file"), "by a\n")
	b.wantFile(filepath.Join(b.mustSetUp(disk, "a"), "file"), "data")
	b.tearDown(tmpfs, "a")
	b.tearDown(disk, "a")
}

// lifeParts are those that the gate takes one of (testtool.Part).
const lifeParts = 6

// An agent is killed at each change that it makes below its root, each mount and each start of a
// driver. The next one has the volumes whole, or takes away what is left; nothing is mounted twice.
func TestAnAgentThatDies(t *testing.T) {
	if given := os.Getenv(lifeVar); given != "" {
		live(t, strings.Split(given, "\n"))
		return
	}
	testtool.Need(t, "mount")
	nstest.RunAlone(t, func(t *testing.T) {
		drivers, data := t.TempDir(), t.TempDir()
		install(t, drivers, "example.com/tmpfs", "example.com/disk")
		if err := os.WriteFile(filepath.Join(data, "file"), []byte("data"), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", t.TempDir()) // who is killed leaves his own there
		points := 0
		first, step := testtool.Part(lifeParts)
		for n := first; killAt(t, drivers, data, calltrace.Point{N: n, After: points%2 == 1}) && !t.Failed(); n += step {
			points++
		}
		t.Logf("killed around %d calls", points)
		if points < 40/step {
			t.Errorf("only at %d calls", points)
		}
	})
}

func killAt(t *testing.T, drivers, data string, at calltrace.Point) bool {
	t.Helper()
	root := t.TempDir()
	killed, call := calltrace.Process{
		Args: []string{"-test.run=^TestAnAgentThatDies$"}, Env: []string{lifeVar + "=" + strings.Join([]string{root, drivers, data, ""}, "\n")}, Limit: time.Minute,
	}.RunUntil(t, at, func(c calltrace.Call) bool {
		return calltrace.ChangesBelow(root)(c) || c.Name == "execve" || c.Name == "clone" || c.Name == "clone3" || c.Name == "vfork"
	})
	if !killed {
		return false
	}
	b := &bench{T: t, Host: fakehost.NewOnKernel(t, host.New(host.Config{})), drivers: drivers}
	b.RootDir = root
	b.restart()
	tmpfs, disk := volumesOf(data, "")
	if at.N%2 == 0 {
		b.wantFile(filepath.Join(b.mustSetUp(tmpfs, "a"), "file"), "by a\n")
		b.wantFile(filepath.Join(b.mustSetUp(disk, "a"), "file"), "data")
		if got := len(b.Mounts(t)); got != 3 {
			t.Errorf("killed %v (%s): %d mounts, %v", at, call, got, b.Mounts(t))
		}
	}
	b.tearDown(tmpfs, "a")
	b.tearDown(disk, "a")
	b.AssertTornDown(t)
	if left := b.attached("example.com/disk"); len(left) > 0 {
		t.Errorf("killed %v (%s): still attached: %v", at, call, left)
	}
	return true
}

// An agent is killed while its driver is amid a mount: what is mounted has no file yet. The driver
// ends with it, and the next agent does not take the mount for a whole one.
func TestADriverThatDiesWithItsAgent(t *testing.T) {
	if given := os.Getenv(lifeVar); given != "" {
		live(t, strings.Split(given, "\n"))
		return
	}
	testtool.Need(t, "mount")
	nstest.RunAs(t, []nstest.Mode{nstest.User}, func(t *testing.T) {
		b := newBench(t, t.TempDir())
		install(t, b.drivers, "example.com/tmpfs")
		hold := filepath.Join(t.TempDir(), "hold")
		b.must(unix.Mkfifo(hold, 0o600))
		agent := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestADriverThatDiesWithItsAgent$")
		agent.Env = append(os.Environ(), lifeVar+"="+strings.Join([]string{b.RootDir, b.drivers, "", hold}, "\n"), "TMPDIR="+t.TempDir())
		b.must(agent.Start())
		pipe, err := os.Open(hold)
		b.must(err)
		defer pipe.Close()
		said := bufio.NewReader(pipe)
		if line, err := said.ReadString('\n'); line != "mounted\n" || err != nil {
			t.Fatalf("the driver says %q, %v", line, err)
		}
		b.must(agent.Process.Kill())
		_ = agent.Wait() // it was killed
		if _, err := said.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("the driver lives: %v", err)
		}
		b.must(os.Remove(hold))
		tmpfs, _ := volumesOf("", hold)
		b.wantFile(filepath.Join(b.mustSetUp(tmpfs, "a"), "file"), "by a\n")
		if got := b.Mounts(t); len(got) != 1 {
			t.Errorf("mounted: %v", got)
		}
		b.tearDown(tmpfs, "a")
		b.AssertTornDown(t)
	})
}
