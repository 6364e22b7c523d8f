package sandbox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/silentfuse"
)

// hanging returns a configuration whose sandbox is never built: a file server
// does not answer, and whoever asks waits until he is killed.
func hanging(t *testing.T) sandbox.Config {
	t.Helper()
	silentfuse.Need(t)
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0) // no code reads it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	target := t.TempDir()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("of-the-test", target, "fuse.silent", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		t.Fatal(err)
	}
	c := program(t)
	c.Mounts = append(c.Mounts, sandbox.Mount{Volume: "v", Source: target + "/volume", Destination: "/podvol"})
	return c
}

// noChildren fails the test where a process was left behind, a dead one too.
func noChildren(t *testing.T) {
	t.Helper()
	if pid, err := eintr.Get(func() (int, error) { return unix.Wait4(-1, nil, unix.WNOHANG, nil) }); !errors.Is(err, unix.ECHILD) {
		t.Errorf("there is a child: wait4 returns %d, %v", pid, err)
	}
}

func TestASignalEndsALaunch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, s := range []syscall.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT} {
			c := hanging(t)
			signals := make(chan os.Signal, 2)
			c.Signals = signals
			signals <- unix.SIGWINCH // which ends nothing
			signals <- s
			code, err := sandbox.Run(t.Context(), c)
			e, ok := errors.AsType[*sandbox.Error](err)
			if code != 128+int(s) || !ok || !errors.Is(e, sandbox.ErrDied) || e.Signal != s {
				t.Errorf("%v: Run: %d, %v", s, code, err)
			}
			noChildren(t)
		}
	})
}

func TestTheContextEndsALaunch(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := hanging(t)
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			for len(children(t)) == 0 && t.Context().Err() == nil {
				runtime.Gosched()
			}
			cancel(why)
		}()
		if p, err := sandbox.Start(ctx, c); p != nil || !errors.Is(err, why) {
			t.Errorf("Start: %v", err)
		}
		noChildren(t)
	})
}

// A signal that came before the program had begun, and does not end it, comes
// to it all the same.
func TestAnEarlySignalWaitsForTheProgram(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		signals := make(chan os.Signal, 1)
		signals <- unix.SIGUSR1
		c := sandbox.Config{Args: []string{"sleep", "60"}, Signals: signals}
		if code, err := sandbox.Run(t.Context(), c); code != 128+int(unix.SIGUSR1) || err != nil {
			t.Errorf("Run: %d, %v", code, err)
		}
	})
}

// helperThat puts a newuidmap into PATH; it maps nothing.
func helperThat(t *testing.T, does string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "newuidmap"), []byte("#!/bin/sh\n"+does+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// Whoever has all ids maps them by itself; others need the helpers.
func TestALaunchEndsWhileIDsAreMapped(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if hasAllIDs(t) {
			return // TestASignalEndsALaunch
		}
		ids := []host.IDMapping{{ContainerID: 0, HostID: 100000, Size: 65536}}
		c := sandbox.Config{Args: []string{"true"}, UserNamespace: &sandbox.UserNamespace{UIDMappings: ids, GIDMappings: ids}}
		signals := make(chan os.Signal, 1)
		fifo := t.TempDir() + "/fifo"
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		helperThat(t, "echo > "+fifo+"; exec sleep 60")
		go func() {
			_, _ = os.ReadFile(fifo)
			signals <- unix.SIGTERM
		}()
		c.Signals = signals
		if e := fails(t, c); !errors.Is(e, sandbox.ErrDied) || e.Signal != unix.SIGTERM {
			t.Errorf("with a helper that sleeps: %v", e)
		}
		noChildren(t)
		// Ctrl-C of a terminal reaches the helper as well: it has refused nothing.
		// SIGINT itself may be ignored here, as in a job in the background.
		helperThat(t, "kill -KILL $$")
		c.Signals = nil
		if e := fails(t, c); !errors.Is(e, sandbox.ErrDied) || errors.Is(e, sandbox.ErrNoIDs) || e.Signal != unix.SIGKILL {
			t.Errorf("with a helper that was killed: %v", e)
		}
	})
}

// What a signal from elsewhere ended was no forgotten Main.
func TestAChildThatIsKilled(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := hanging(t)
		ctx, stop := context.WithCancel(t.Context())
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			for ctx.Err() == nil { // the first may be one by which Go tries what the kernel can
				for _, pid := range children(t) {
					_ = unix.Kill(pid, unix.SIGKILL)
				}
				runtime.Gosched()
			}
		}()
		if e := fails(t, c); !errors.Is(e, sandbox.ErrDied) || e.Signal != unix.SIGKILL || e.ExitCode() != 128+9 {
			t.Errorf("%v", e)
		}
		stop()
		<-killed
	})
}

// children are the processes that this one has started.
func children(t *testing.T) []int {
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		t.Error(err)
	}
	var all []int
	for _, list := range lists {
		content, _ := os.ReadFile(list) // the thread may have ended
		for _, field := range strings.Fields(string(content)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Error(err)
			}
			all = append(all, pid)
		}
	}
	return all
}
