package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/silentfuse"
	"github.com/podvol/podvol/util/testenv/vmtest"
)

// A real systemd-run puts a FUSE file system's daemon into a scope of its own,
// and so it outlives the agent's service; one that was mounted without dies.
func TestFUSEDaemonSurvivesItsAgent(t *testing.T) {
	vmtest.Run(t, func(t *testing.T) {
		binary, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		// mount(8) runs it with source and mount point.
		helper := fmt.Sprintf("#!/bin/sh\n%s='daemon '\"$2\" setsid %q </dev/null >/dev/null 2>&1 &\nuntil mountpoint -q \"$2\"; do sleep 0.05; done\n", holderVar, binary)
		if err := os.WriteFile("/sbin/mount.fuse.silent", []byte(helper), 0o755); err != nil {
			t.Fatal(err)
		}
		s := vmtest.StartSystemd(t)
		for how, survives := range map[string]bool{"mount": true, "mountplainly": false} {
			t.Run(how, func(t *testing.T) {
				dir := t.TempDir()
				target, up, log := filepath.Join(dir, "a target"), filepath.Join(dir, "up"), filepath.Join(dir, "log")
				if err := errors.Join(os.Mkdir(target, 0o755), unix.Mkfifo(up, 0o600)); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if text, err := os.ReadFile(log); t.Failed() {
						t.Logf("the agent's log: %s (%v)", text, err)
					}
				})
				s.Start(t, vmtest.Service{Name: "agent", Log: log, Command: []string{binary},
					Env: []string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + os.TempDir(), holderVar + "=agent " + how + " " + dir}})
				if said, err := os.ReadFile(up); err != nil || string(said) != "mounted" {
					t.Fatalf("the agent says %q (%v)", said, err)
				}
				scopes := s.Systemctl(t, "list-units", "--type=scope", "--full", "--plain")
				if wanted := strings.Contains(scopes, "Kubernetes transient mount for "+target); wanted != survives {
					t.Errorf("the scope of %s is there: %v, want %v:\n%s", target, wanted, survives, scopes)
				}
				s.Stop(t, "agent")
				// What the mount itself answers, of which nothing is cached.
				out, err := s.Command(t.Context(), "stat", target).CombinedOutput()
				if alive := err == nil; alive != survives {
					t.Errorf("after the agent's end the daemon answers: %v, want %v: %v: %s", alive, survives, err, out)
				}
				if !survives && !strings.Contains(string(out), "not connected") {
					t.Errorf("after the daemon's end: %s", out)
				}
			})
		}
	})
}

// runAgent is an agent that mounts "<how> <dir>"'s target and then lives on.
func runAgent(rest string) error {
	how, dir, _ := strings.Cut(rest, " ")
	m := host.New(host.Config{})
	request := mount.Request{Source: "silent", Target: filepath.Join(dir, "a target"), FSType: "fuse.silent"}
	var err error
	if how == "mount" {
		err = m.MountContext(context.Background(), request)
	} else {
		err = m.MountSensitiveWithoutSystemd(request.Source, request.Target, request.FSType, nil, nil)
	}
	if err != nil {
		return errors.Join(err, os.WriteFile(filepath.Join(dir, "up"), []byte(err.Error()), 0o600))
	}
	if err := os.WriteFile(filepath.Join(dir, "up"), []byte("mounted"), 0o600); err != nil {
		return err
	}
	untilTerminated()
	return nil
}

// untilTerminated waits for the signal with which systemd ends a service.
func untilTerminated() {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, unix.SIGTERM)
	<-terminated
}

// serveFUSE is the daemon of a file system.
func serveFUSE(target string) error {
	if _, err := silentfuse.Mount("silent", target); err != nil {
		return err
	}
	untilTerminated()
	return nil
}
