package iscsi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/agent"
	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/invariant"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// loginSite is what outlives the processes that mount a target's disk.
type loginSite struct {
	Dir, IQN string
	// Task is what the process does: live, mount again, or release.
	Task string
	// Content is what the process that lives writes.
	Content string
}

const (
	// loginSiteVar has TestAProcessThatLogsIn be one of these processes.
	loginSiteVar = "PODVOL_TEST_LOGIN_SITE"
	// loginParts are those that the gate takes one of (testtool.Part).
	loginParts = 60
	loginPod   = "killed"
)

func (s *loginSite) root() string { return filepath.Join(s.Dir, "root") }

// noted is where a process notes that its pod has written.
func (s *loginSite) noted() string { return filepath.Join(s.Dir, "noted") }

// TestAProcessThatLogsIn is not a test of its own: it is a process of testKilled.
func TestAProcessThatLogsIn(t *testing.T) {
	given := os.Getenv(loginSiteVar)
	if given == "" {
		return
	}
	var s loginSite
	must(t, json.Unmarshal([]byte(given), &s))
	n := machineAt(t, s.root())
	n.volume("disk", &lioTarget{t: t, iqn: s.IQN, portals: []string{portal}}, 0)
	if s.Task == "release" {
		n.Containers = agent.NoContainers{}
	}
	n.Start()
	defer n.Stop()
	if s.Task == "release" {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		must(t, n.Manager.WaitForUnmounted(ctx, agent.Pod(loginPod).UID))
		return
	}
	file := filepath.Join(n.SetUp(agent.Pod(loginPod, "disk")), "file")
	if s.Task == "live" {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
		must(t, err)
		_, err = f.WriteAt([]byte(s.Content), 0) // of one length each time
		must(t, err, f.Sync(), f.Close(), os.WriteFile(s.noted(), []byte(s.Content), 0o600))
	} else if data, err := os.ReadFile(file); !s.may(string(data)) || err != nil {
		t.Errorf("the file has %q, %v", data, err)
	}
	n.TearDown(loginPod)
}

// may reports whether a pod may read this: what was noted last, or what was written since.
func (s *loginSite) may(data string) bool {
	noted, _ := os.ReadFile(s.noted())
	return string(noted) <= data && data <= s.Content // by their numbers
}

// testKilled kills the process that logs in and mounts a disk, unmounts it and logs out, before
// or after system calls that change something, or start a program. The next one has the pod
// again, or has to release what is left of it.
func testKilled(t *testing.T) {
	g := newLIO(t, "", portal)
	g.add(0, "a")
	s := &loginSite{Dir: t.TempDir(), IQN: g.iqn, Task: "live", Content: "content 0000"}
	s.run(t, g, calltrace.Point{})
	s.wantNothing(t, g)
	first, step := testtool.Part(loginParts)
	points := 0
	for n := first; s.killAt(t, g, n) && !t.Failed(); n += step {
		points++
	}
	t.Logf("killed around %d system calls, and what was left was mounted again, or released", points)
	if points < 60/step {
		t.Errorf("only at %d system calls", points)
	}
	s.Task = "mount again"
	s.run(t, g, calltrace.Point{})
}

// killAt kills a process around its n-th call, and has another one go on; in a whole sweep it does
// so for both that may. It reports false if they make fewer calls.
func (s *loginSite) killAt(t *testing.T, g *lioTarget, n int) bool {
	t.Helper()
	for i, next := range []string{"mount again", "release"} {
		if testtool.Shortened() && i != n%2 {
			continue
		}
		s.Task, s.Content = "live", fmt.Sprintf("content %04d", 2*n+i)
		at := calltrace.Point{N: n, After: next == "release"}
		killed, call := s.run(t, g, at)
		if !killed {
			return false
		}
		s.Task = next
		s.run(t, g, calltrace.Point{})
		if s.wantNothing(t, g); t.Failed() {
			t.Logf("killed %s, %s; then: %s", at, call, next)
		}
	}
	return true
}

// run runs a process until the point; the zero point is its end.
func (s *loginSite) run(t *testing.T, g *lioTarget, until calltrace.Point) (killed bool, call string) {
	t.Helper()
	given, err := json.Marshal(s)
	must(t, err)
	changes := calltrace.ChangesBelow(s.Dir)
	return calltrace.Process{Args: []string{"-test.run=^TestAProcessThatLogsIn$", "-test.timeout=5m"}, Env: []string{loginSiteVar + "=" + string(given)}}.
		RunUntil(t, until, func(c calltrace.Call) bool {
			counts := changes(c) || c.Changes && (strings.HasPrefix(c.Path, "/sys/") || strings.HasPrefix(c.Path, "/etc/iscsi/") || c.Name == "clone")
			if counts {
				s.wantAttached(t, g, c.Text)
			}
			return counts
		})
}

// wantAttached: what holds at any time.
func (s *loginSite) wantAttached(t *testing.T, g *lioTarget, when string) {
	t.Helper()
	sessions := g.sessions()
	if sessions > 1 {
		t.Errorf("at %s: %d sessions", when, sessions)
	}
	entries, err := table.Kernel().All()
	must(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Source, "/dev/sd") && sessions == 0 {
			t.Errorf("at %s: %s is mounted at %s, and there is no session", when, e.Source, e.Target)
		}
	}
}

// wantNothing looks for what is left of a pod.
func (s *loginSite) wantNothing(t *testing.T, g *lioTarget) {
	t.Helper()
	g.wantNothing()
	mounted, err := invariant.Mounted(s.root(), table.Kernel())
	must(t, err)
	keys, err := invariant.Records(s.root())
	must(t, err)
	if len(mounted)+len(keys) > 0 {
		t.Errorf("left: mounts %v, records %v", mounted, keys)
	}
	for _, dir := range []string{"pods", "plugins"} {
		err := filepath.WalkDir(filepath.Join(s.root(), dir), func(path string, _ fs.DirEntry, err error) error {
			if below, _ := filepath.Rel(s.root(), path); err == nil && !slices.Contains([]string{"pods", "plugins", "plugins/kubernetes.io"}, below) {
				t.Errorf("left: %s", path)
			}
			return err
		})
		if !errors.Is(err, fs.ErrNotExist) {
			must(t, err)
		}
	}
}
