package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/util/userns"
	"github.com/podvol/podvol/volume/podrun"
	"github.com/podvol/podvol/volume/podrun/runroot"
)

// withHelpers has the runner find these scripts as newuidmap and newgidmap.
func (r *runner) withHelpers(t *testing.T, script string) {
	t.Helper()
	helpers := t.TempDir()
	openUp(t, helpers)
	for _, name := range []string{"newuidmap", "newgidmap"} {
		must(t, os.WriteFile(filepath.Join(helpers, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	r.env = append(r.env, "PATH="+helpers+":"+os.Getenv("PATH"))
}

// startsWithSignals has programs that the test starts heed these signals, also
// where the test itself was started to ignore them, as in the background or by
// nohup: what is handled has its default in what is started.
func startsWithSignals(t *testing.T, signals ...os.Signal) {
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, signals...)
	t.Cleanup(func() { signal.Stop(heard) })
}

// withInterruptedStart goes on where an ordinary user has ids of others: who
// interrupts podvol before its program has begun wants no program.
func withInterruptedStart(t *testing.T) {
	file := openFile(t, withoutIDs)
	startsWithSignals(t, unix.SIGINT)
	// Ctrl-C: the terminal's process group gets it, helpers included.
	r := asOrdinaryUser(t)
	r.withHelpers(t, "kill -INT 0\nexec sleep 100")
	for range 3 { // who hears of it first is a matter of luck
		c := r.command(t, "run", "-f", file, "--", "echo", "it ran")
		c.SysProcAttr.Setpgid = true
		out, _ := c.CombinedOutput()
		if code := c.ProcessState.ExitCode(); code != exitRunFailed || strings.Contains(string(out), "it ran\n") {
			t.Errorf("exit code %d: %s", code, out)
		}
	}
	// A signal to podvol alone: nobody waits for the helper.
	r = asOrdinaryUser(t)
	called := filepath.Join(t.TempDir(), "called")
	openUp(t, filepath.Dir(called))
	must(t, unix.Mkfifo(called, 0o666))
	must(t, os.Chmod(called, 0o666))
	r.withHelpers(t, "echo > "+called+"\nexec sleep 100")
	calls, err := os.OpenFile(called, os.O_RDWR, 0)
	must(t, err)
	defer calls.Close()
	c := r.command(t, "run", "-f", file, "--", "echo", "it ran")
	said := &strings.Builder{}
	c.Stdout, c.Stderr = said, said
	must(t, c.Start())
	must(t, calls.SetReadDeadline(time.Now().Add(patience)))
	if _, err := calls.Read(make([]byte, 1)); err != nil {
		t.Errorf("newuidmap was not called: %v", err)
	}
	must(t, c.Process.Signal(unix.SIGTERM))
	stuck := time.AfterFunc(patience, func() { _ = c.Process.Kill() })
	defer stuck.Stop()
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != exitRunFailed || !strings.Contains(said.String(), "interrupted before") {
		t.Errorf("exit code %d: %s", code, said)
	}
	r.assertNothingLeft(t)
}

func TestRunBeginsNothingOnceInterrupted(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		made := filepath.Join(t.TempDir(), "made")
		s := podrun.TakeSignals()
		defer s.Stop()
		why := errors.New("told to end")
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(why)
		config := sandbox.Config{Args: []string{"touch", made}, Env: os.Environ()}
		code, err := s.Run(ctx, config)
		if _, interrupted := errors.AsType[*podrun.InterruptedError](err); !interrupted || !errors.Is(err, why) || code != exitRunFailed {
			t.Errorf("%d, %v", code, err)
		}
		if _, err := os.Stat(made); !os.IsNotExist(err) {
			t.Errorf("it ran: %v", err)
		}
		if code, err := s.Run(t.Context(), config); code != 0 || err != nil {
			t.Errorf("%d, %v", code, err)
		}
	})
}

// nohup, and a shell's "&", have podvol's caller say which signals are nothing
// to it; that holds for the program too.
func TestRunGoesOnWhereSignalsAreIgnored(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		users := []*runner{ownProcess(t)}
		if os.Getenv("PODVOL_NSTEST") != "user" {
			users = append(users, asOrdinaryUser(t))
		}
		shell, err := exec.LookPath("sh")
		must(t, err)
		for _, r := range users {
			c := r.command(t, "run", "-f", openFile(t, withoutIDs), "--", "sh", "-c", "grep SigIgn /proc/self/status; read line; echo $line; exit 3")
			c.Path, c.Args = shell, append([]string{"sh", "-c", `trap '' HUP INT; exec "$0" "$@"`}, c.Args...)
			in, err := c.StdinPipe()
			must(t, err)
			out, err := c.StdoutPipe()
			must(t, err)
			must(t, c.Start())
			ignored := strings.TrimSpace(strings.TrimPrefix(waitFor(t, out, "\n"), "SigIgn:"))
			if want := fmt.Sprintf("%016x", 1<<(unix.SIGHUP-1)|1<<(unix.SIGINT-1)); ignored != want {
				t.Errorf("ignored: %s, want %s", ignored, want)
			}
			must(t, c.Process.Signal(unix.SIGHUP))
			must(t, c.Process.Signal(unix.SIGINT))
			_, err = in.Write([]byte("goes on\n"))
			must(t, err)
			waitFor(t, out, "goes on\n")
			_ = c.Wait()
			if code := c.ProcessState.ExitCode(); code != 3 {
				t.Errorf("exit code %d", code)
			}
			r.assertNothingLeft(t)
		}
	})
}

// What could not be unmounted stays, with all that says what it is.
func TestRunKeepsWhatItCannotTakeDown(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base := t.TempDir()
		must(t, unix.Mount(base, base, "", unix.MS_BIND, ""))
		t.Cleanup(func() { _ = unix.Unmount(base, unix.MNT_DETACH) })
		must(t, unix.Mount("", base, "", unix.MS_SHARED, ""))
		file := openFile(t, `
apiVersion: v1
kind: Pod
metadata: {name: both}
spec:
  containers:
  - name: c
    image: i
    securityContext: {privileged: true}
    volumeMounts: [{name: e, mountPath: /e, mountPropagation: Bidirectional}]
  volumes: [{name: e, emptyDir: {}}]
`)
		testtool.Need(t, "mount")
		_, errOut := mustPodvol(t, exitRunFailed, "run", "--root-dir", base, "-f", file, "--csi-driver", "d.example.com=/run/d.sock", "--", "sh", "-ec",
			"mkdir /e/a; mount -t tmpfs tmpfs /e/a; echo precious > /e/a/inside; echo precious > /e/beside")
		if !strings.Contains(errOut, "stays behind") || !strings.Contains(errOut, "fsck --repair --root-dir "+base+" --csi-driver d.example.com=/run/d.sock") {
			t.Errorf("stderr %s", errOut)
		}
		var kept []string
		for _, path := range tree(t, base) {
			switch filepath.Base(path) {
			case "inside", "beside", "records", runroot.Marker:
				kept = append(kept, filepath.Base(path))
			}
		}
		if len(kept) != 4 {
			t.Errorf("only %v are left of\n%s", kept, strings.Join(tree(t, base), "\n"))
		}
		dead, done, err := runsOf(base).Dead()
		done()
		if err != nil || len(dead) != 1 {
			t.Fatalf("%d dead runs, %v", len(dead), err)
		}
		for _, path := range tree(t, base) {
			if filepath.Base(path) == "inside" {
				must(t, unix.Unmount(filepath.Dir(path), 0))
			}
		}
		mustPodvol(t, exitOK, "fsck", "--repair", "--root-dir", base)
		if left := tree(t, base); len(left) != 1 {
			t.Errorf("left: %v", left)
		}
	})
}

// The flag by which podvol starts itself again does not change the mounts of a
// machine.
func TestRunInsideIsForItselfOnly(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		ids, err := userns.UIDs()
		must(t, err)
		want, says := exitOK, ""
		if ids.Has(1<<32 - 2) {
			want, says = exitRunFailed, "--inside is for podvol itself"
		}
		_, errOut := mustPodvol(t, want, "run", "--inside", "--root-dir", t.TempDir(), "-f", openFile(t, withoutIDs), "--", "true")
		if !strings.Contains(errOut, says) {
			t.Errorf("stderr %s", errOut)
		}
	})
}
