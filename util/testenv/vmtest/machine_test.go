package vmtest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/podvol/podvol/util/testenv/vmtest"
)

// needMachine ends tests of the host's side where no machine is asked for, or
// where they would need one within one.
func needMachine(t *testing.T) bool {
	t.Helper()
	if os.Getenv("PODVOL_VMTEST") == "" || vmtest.Inside() {
		t.Log("not run: machines are not asked for, or this is one")
		return false
	}
	return true
}

func shell(script string, args ...string) vmtest.Command {
	return vmtest.Command{Path: "/bin/sh", Args: append([]string{"-c", script, "sh"}, args...), Dir: "/"}
}

func TestCommand(t *testing.T) {
	if !needMachine(t) {
		return
	}
	hostDir := t.TempDir()
	if err := os.WriteFile(filepath.Join(hostDir, "file"), []byte("from the host\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := shell(`
		cat file; echo over >file; cat file
		printf '%s\n' "$@" "$WORDS" "$(pwd)"
		touch "$TMPDIR/file" && ls "$TMPDIR"
		cat >&2; echo to stderr >&2; echo again >/dev/stderr
		sleep 1000 & # keeps the outputs open
		exit 7`, "it's", "two\nlines", "$HOME")
	c.Env, c.Dir = []string{"PATH=/usr/bin:/bin", "WORDS=a", "WORDS=b 'c'", "TMPDIR=/nowhere"}, hostDir
	var stdout, stderr, console bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	code, err := vmtest.Machine{Console: &console, CPUs: 1, MemoryMiB: 1024}.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
	want := "from the host\nover\nit's\ntwo\nlines\n$HOME\nb 'c'\n" + hostDir + "\nfile\n"
	if diff := cmp.Diff(want, stdout.String()); diff != "" {
		t.Errorf("standard output (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff("to stderr\nagain\n", stderr.String()); diff != "" {
		t.Errorf("standard error (-want +got):\n%s", diff)
	}
	if !strings.Contains(console.String(), "Linux version") {
		t.Errorf("the console does not show the kernel's first line:\n%s", &console)
	}
	left, err := os.ReadFile(filepath.Join(hostDir, "file"))
	if err != nil || string(left) != "from the host\n" {
		t.Errorf("the host's file is now %q (%v)", left, err)
	}
}

// The outputs keep their order and lose nothing when they are one and the
// machine ends at once.
func TestCommandOneOutput(t *testing.T) {
	if !needMachine(t) {
		return
	}
	var both bytes.Buffer
	c := shell(`i=0; while [ $i -lt 20000 ]; do echo out $i; echo err $i >&2; i=$((i+1)); done; kill -9 $$`)
	c.Stdout, c.Stderr = &both, &both
	code, err := vmtest.Machine{}.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if code != 128+9 {
		t.Errorf("exit code %d, want 137 for a killed process", code)
	}
	lines := strings.Split(strings.TrimSpace(both.String()), "\n")
	if len(lines) != 40000 {
		t.Fatalf("%d lines, want 40000; the last is %q", len(lines), lines[len(lines)-1])
	}
	if lines[0] != "out 0" || lines[1] != "err 0" || lines[39999] != "err 19999" {
		t.Errorf("the lines are from %q and %q to %q", lines[0], lines[1], lines[len(lines)-1])
	}
}

func TestContextEndsTheMachine(t *testing.T) {
	if !needMachine(t) {
		return
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	enough := errors.New("enough")
	c := shell("echo started; while :; do :; done")
	c.Stdout = writerFunc(func([]byte) { cancel(enough) })
	_, err := vmtest.Machine{}.Run(ctx, c)
	if !errors.Is(err, enough) {
		t.Fatalf("err = %v, want the context's cause", err)
	}
	// QEMU holds the only other descriptors of our pipes: had it outlived Run,
	// Run would still read.
}

func TestPanicIsShown(t *testing.T) {
	if !needMachine(t) {
		return
	}
	var stdout bytes.Buffer
	var start time.Time // once it is up, which takes a busy host its time
	c := shell("echo before; echo c >/proc/sysrq-trigger; sleep 100; echo after")
	c.Stdout = io.MultiWriter(&stdout, writerFunc(func([]byte) { start = time.Now() }))
	_, err := vmtest.Machine{}.Run(t.Context(), c)
	if !errors.Is(err, vmtest.ErrDied) || !strings.Contains(err.Error(), "sysrq triggered crash") {
		t.Errorf("err = %v, want ErrDied and the kernel's words", err)
	}
	// What was on its way out of the machine when it died may be lost.
	if !strings.HasPrefix("before\n", stdout.String()) {
		t.Errorf("standard output %q", &stdout)
	}
	if took := time.Since(start); !start.IsZero() && took > 90*time.Second {
		t.Errorf("it took %v, as long as the command itself", took)
	}
}

// Once with systemd-shutdown's own limits in the way: a process that ignores
// SIGTERM, and a directory in use.
func TestPowerOff(t *testing.T) {
	if !needMachine(t) {
		return
	}
	var console bytes.Buffer
	c := shell("trap '' TERM; kill -USR2 1; while :; do sleep 1; done")
	c.Dir = t.TempDir()
	_, err := vmtest.Machine{Console: &console}.Run(t.Context(), c)
	if !errors.Is(err, vmtest.ErrPoweredOff) || !errors.Is(err, vmtest.ErrDied) {
		t.Errorf("err = %v, want ErrPoweredOff", err)
	}
	for _, words := range []string{"Sending SIGTERM to remaining processes", "Sending SIGKILL to remaining processes", "Unmounting file systems"} {
		if !strings.Contains(console.String(), words) {
			t.Errorf("the console lacks %q:\n%s", words, &console)
		}
	}
}

func TestUnavailable(t *testing.T) {
	empty := t.TempDir()
	t.Run("no kernel in the directory", func(t *testing.T) {
		_, err := vmtest.Machine{Kernel: empty}.Run(t.Context(), shell("true"))
		if !errors.Is(err, vmtest.ErrUnavailable) || !strings.Contains(err.Error(), empty) {
			t.Errorf("err = %v, want ErrUnavailable that names the directory", err)
		}
	})
	t.Run("no QEMU", func(t *testing.T) {
		dir := t.TempDir()
		for name, content := range map[string]string{
			"boot/vmlinuz-1":                "",
			"lib/modules/1/modules.dep":     "",
			"lib/modules/1/modules.builtin": "",
		} {
			file := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", empty)
		_, err := vmtest.Machine{Kernel: dir}.Run(t.Context(), shell("true"))
		if !errors.Is(err, vmtest.ErrUnavailable) || !strings.Contains(err.Error(), "install qemu-system-x86") {
			t.Errorf("err = %v, want ErrUnavailable with the package", err)
		}
	})
}

type writerFunc func([]byte)

func (f writerFunc) Write(b []byte) (int, error) { f(b); return len(b), nil }
