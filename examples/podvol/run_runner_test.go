package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// runner is podvol as a process of its own, by a user.
type runner struct {
	binary string // that every user may execute
	root   string // the root directory, or else the default below home
	home   string
	env    []string
	attr   syscall.SysProcAttr
}

// ownProcess runs podvol as the user that the tests run as.
func ownProcess(t *testing.T) *runner {
	t.Helper()
	dir := t.TempDir()
	openUp(t, dir)
	r := &runner{binary: filepath.Join(dir, "podvol"), env: append(os.Environ(), mainVar+"=1"), root: filepath.Join(t.TempDir(), "root")}
	copyFile(t, "/proc/self/exe", r.binary, 0o755)
	return r
}

// ordinaryUser is the user behind asOrdinaryUser where the tests run as root.
const ordinaryUser = 65534

// asOrdinaryUser runs podvol as a user without rights: another one if the tests
// run as root, so that files that it must reach have to be open to all.
func asOrdinaryUser(t *testing.T) *runner {
	t.Helper()
	r := ownProcess(t)
	home := t.TempDir()
	openUp(t, home)
	if os.Geteuid() == 0 {
		r.attr.Credential = &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser}
		if err := os.Chown(home, ordinaryUser, ordinaryUser); err != nil {
			t.Fatal(err)
		}
	}
	r.home, r.root = home, ""
	r.env = append(r.env, "XDG_STATE_HOME="+home, "TMPDIR="+home)
	return r
}

// base is where runs of this runner are.
func (r *runner) base() string {
	if r.root != "" {
		return r.root
	}
	return filepath.Join(r.home, "podvol")
}

// assertNothingLeft checks that no run has left anything.
func (r *runner) assertNothingLeft(t *testing.T) {
	t.Helper()
	assertNothingMountedBelow(t, r.base())
	if left, err := os.ReadDir(r.base()); !os.IsNotExist(err) && (r.root == "" || len(left) > 0) {
		t.Errorf("%s is left: %v, %v", r.base(), left, err)
	}
}

// openUp lets every user into a directory and those around it.
func openUp(t *testing.T, dir string) {
	t.Helper()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// openFile is a manifest that every user can read.
func openFile(t *testing.T, text string) string {
	t.Helper()
	file := manifestFile(t, text)
	openUp(t, filepath.Dir(file))
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func (r *runner) command(t *testing.T, args ...string) *exec.Cmd {
	if r.root != "" {
		args = slices.Insert(slices.Clone(args), 1, "--root-dir", r.root)
	}
	c := exec.CommandContext(t.Context(), r.binary, args...)
	c.Env, c.Dir = r.env, "/"
	attr := r.attr
	c.SysProcAttr = &attr
	return c
}

// run runs it to its end.
func (r *runner) run(t *testing.T, want int, args ...string) (out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	c := r.command(t, args...)
	c.Stdout, c.Stderr = &o, &e
	if err := c.Run(); err != nil && c.ProcessState == nil {
		t.Fatal(err)
	}
	if code := c.ProcessState.ExitCode(); code != want {
		t.Fatalf("podvol %s: exit code %d, want %d\nstdout: %s\nstderr: %s", strings.Join(args, " "), code, want, &o, &e)
	}
	return o.String(), e.String()
}

// started is a podvol run whose program has said that it is ready.
type started struct {
	*exec.Cmd
	out    io.Reader
	errOut *bytes.Buffer
}

func (r *runner) start(t *testing.T, args ...string) *started {
	t.Helper()
	s := &started{Cmd: r.command(t, args...), errOut: &bytes.Buffer{}}
	s.Stderr = s.errOut
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.out = out
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(out, ready); err != nil || string(ready) != "ready\n" {
		_ = s.Wait()
		t.Fatalf("it says %q, %v\nstderr: %s", ready, err, s.errOut)
	}
	return s
}

// end returns what else it says, and its exit code.
func (s *started) end(t *testing.T) (out string, code int) {
	t.Helper()
	rest, err := io.ReadAll(s.out)
	if err != nil {
		t.Error(err)
	}
	_ = s.Wait() // the state says it
	return string(rest), s.ProcessState.ExitCode()
}

// waitFor reads until a text has come, and returns what came with it.
func waitFor(t *testing.T, from io.Reader, text string) string {
	t.Helper()
	var seen []byte
	buffer := make([]byte, 1)
	for !bytes.HasSuffix(seen, []byte(text)) {
		if _, err := from.Read(buffer); err != nil {
			t.Fatalf("waiting for %q: %v after %q", text, err, seen)
		}
		seen = append(seen, buffer...)
	}
	return string(seen)
}
