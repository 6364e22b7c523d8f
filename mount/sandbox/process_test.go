package sandbox_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/testenv/nstest"
)

func TestExitCodes(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		write(t, dir+"/script", "#!/no/such/interpreter\n")
		write(t, dir+"/data", "no program")
		for _, path := range []string{dir + "/script", dir + "/data"} {
			if err := os.Chmod(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		write(t, dir+"/plain", "not executable")
		for name, tc := range map[string]struct {
			args  []string
			code  int
			cause error
		}{
			"success":           {[]string{probeName, "exit:0"}, 0, nil},
			"its own":           {[]string{probeName, "exit:7"}, 7, nil},
			"by a signal":       {[]string{probeName, "die"}, 128 + 9, nil},
			"not in PATH":       {[]string{"podvol-no-such-program"}, 127, sandbox.ErrProgramNotFound},
			"no such file":      {[]string{dir + "/none"}, 127, sandbox.ErrProgramNotFound},
			"not executable":    {[]string{dir + "/plain"}, 126, sandbox.ErrProgram},
			"no format":         {[]string{dir + "/data"}, 126, unix.ENOEXEC},
			"no interpreter":    {[]string{dir + "/script"}, 126, sandbox.ErrProgram},
			"a directory":       {[]string{dir}, 126, sandbox.ErrProgram},
			"no program at all": {nil, 125, sandbox.ErrConfig},
		} {
			t.Run(name, func(t *testing.T) {
				c := program(t)
				c.Args = tc.args
				code, err := sandbox.Run(t.Context(), c)
				if code != tc.code || !errors.Is(err, tc.cause) {
					t.Errorf("Run: %d, %v; want %d, %v", code, err, tc.code, tc.cause)
				}
			})
		}
	})
}

// tail is an output that knows whether it was read to its end.
type tail struct{ ended atomic.Bool }

func (o *tail) Write(p []byte) (int, error) { return len(p), nil }

func (o *tail) ReadFrom(r io.Reader) (n int64, err error) {
	n, err = io.Copy(io.Discard, r)
	o.ended.Store(true)
	return n, err
}

// What was not begun does not use the caller's output any more.
func TestNothingIsWrittenAfterAFailedStart(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for range 10 {
			var out, errs tail
			c := program(t)
			c.Args, c.Stdout, c.Stderr = []string{"podvol-no-such-program"}, &out, &errs
			if _, err := sandbox.Start(t.Context(), c); !errors.Is(err, sandbox.ErrProgramNotFound) {
				t.Fatalf("Start: %v", err)
			}
			if !out.ended.Load() || !errs.ended.Load() {
				t.Fatal("its output was not at its end when Start returned")
			}
		}
	})
}

// Root's home is closed to the child of the mode "user".
func TestPathWithAClosedDirectory(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		c := program(t)
		c.Args, c.Env = []string{"podvol-no-such-program"}, []string{"PATH=/root:/usr/bin"}
		if code, err := sandbox.Run(t.Context(), c); code != 127 || !errors.Is(err, sandbox.ErrProgramNotFound) {
			t.Errorf("Run: %d, %v", code, err)
		}
	})
}

func TestStandardStreamsEnvironmentAndDirectory(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		c := program(t)
		c.Env = append(c.Env, "BYTES=\xff\x00 is no Unicode"[:7])
		c.Dir = dir
		c.Args = append(c.Args, "hex:BYTES", "inherited")
		s, _ := run(t, c)
		if len(s.Env) != len(c.Env) || s.Dir != dir {
			t.Errorf("the program is in %s with %q, want %s with %q", s.Dir, s.Env, dir, c.Env)
		}
		if want := []string{"ff", "0 1 2"}; !slices.Equal(s.Results, want) {
			t.Errorf("results %q, want %q", s.Results, want)
		}
		c.Dir = dir + "/none"
		if e := fails(t, c); !errors.Is(e, unix.ENOENT) || e.Path != c.Dir {
			t.Error(e)
		}
	})
}

// begin starts a program that says when it is ready.
func begin(t *testing.T, ctx context.Context, c sandbox.Config) *sandbox.Process {
	t.Helper()
	output, says, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	c.Stdout = says
	p, err := sandbox.Start(ctx, c)
	says.Close()
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(output).ReadString('\n'); line != "ready\n" {
		t.Fatal(line, err)
	}
	return p
}

func TestSignalsReachTheProgram(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		signals := make(chan os.Signal, 1)
		c := program(t, "await")
		c.Signals = signals
		p := begin(t, t.Context(), c)
		signals <- syscall.SIGTERM
		if code, err := p.Wait(); code != 42 || err != nil {
			t.Errorf("Wait: %d, %v", code, err)
		}
		if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("Signal after the end: %v", err)
		}
		p = begin(t, t.Context(), program(t, "hang"))
		if err := p.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if code, err := p.Wait(); code != 128+15 || err != nil {
			t.Errorf("Wait: %d, %v", code, err)
		}
	})
}

func TestTheContextEndsTheProgram(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		p := begin(t, ctx, program(t, "hang"))
		cancel(why)
		if code, err := p.Wait(); code != 128+9 || !errors.Is(err, why) {
			t.Errorf("Wait: %d, %v", code, err)
		}
		if code, err := sandbox.Run(ctx, program(t)); code != 128+9 || !errors.Is(err, why) {
			t.Errorf("Run in a context that has ended: %d, %v", code, err)
		}
	})
}

func TestAProcessIDNamespace(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		mounted := t.TempDir() // a root that has a /proc, of the caller's processes
		if err := unix.Mount("/proc", mkdir(t, mounted+"/proc"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			t.Fatal(err)
		}
		for _, root := range []string{"", t.TempDir(), mounted} {
			c := program(t, "list:/proc")
			if root != "" {
				c = inRoot(t, c, root)
			}
			c.PIDNamespace = true
			s, _ := run(t, c)
			if s.PID != 1 {
				t.Errorf("root %q: the program is process %d", root, s.PID)
			}
			entries := strings.Fields(s.Results[0])
			if !slices.Contains(entries, "1") || slices.Contains(entries, fmt.Sprint(os.Getpid())) {
				t.Errorf("root %q: /proc shows %q", root, entries)
			}
		}
	})
}

// forgetfulVar makes this test binary a program that forgets to call
// sandbox.Main.
const forgetfulVar = "SANDBOX_FORGETFUL"

func forgetful() int {
	code, err := sandbox.Run(context.Background(), sandbox.Config{Args: []string{"true"}, UserNamespace: onlyMe(), Stderr: os.Stderr})
	fmt.Fprintln(os.Stderr, err)
	return code
}

func TestAForgottenMainIsNamed(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), forgetfulVar+"=1")
		out, err := cmd.CombinedOutput()
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok || exit.ExitCode() != 125 || strings.Count(string(out), "main must call sandbox.Main") != 2 {
			t.Errorf("%v: %s", err, out)
		}
	})
}

// parentName is the first argument by which this test binary runs a program in a
// sandbox and is then killed.
const parentName = "sandbox-parent"

// parentOrder is the part of a Config that a parent is told.
type parentOrder struct {
	Args, Env     []string
	Mounts        []sandbox.Mount
	Credential    *sandbox.Credential
	UserNamespace *sandbox.UserNamespace
	PIDNamespace  bool
}

// parent runs the program that its standard input describes and says that
// program's process id.
func parent() int {
	var o parentOrder
	if err := json.NewDecoder(os.Stdin).Decode(&o); err != nil {
		return 99
	}
	c := sandbox.Config{
		Args: o.Args, Env: o.Env, Mounts: o.Mounts, Credential: o.Credential, UserNamespace: o.UserNamespace, PIDNamespace: o.PIDNamespace,
		Stdout: os.Stdout, Stderr: os.Stderr,
	}
	p, err := sandbox.Start(context.Background(), c)
	if err != nil {
		fmt.Println(err)
		return 98
	}
	fmt.Println("pid", p.PID())
	code, _ := p.Wait()
	return code
}

func TestAProgramDiesWithItsParent(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		mountShared(t, dir+"/source")
		for name, change := range map[string]func(*sandbox.Config){
			"as it is":                func(*sandbox.Config) {},
			"with other ids":          func(c *sandbox.Config) { c.Credential = otherIDs(t) },
			"in its own user and pid": func(c *sandbox.Config) { c.UserNamespace, c.PIDNamespace = sameIDs(t), true },
		} {
			t.Run(name, func(t *testing.T) {
				before := look(t)
				c := program(t, "hang")
				c.Mounts = append(c.Mounts, sandbox.Mount{Source: dir + "/source", Destination: "/podvol", Propagation: "rslave"})
				change(&c)
				order, err := json.Marshal(parentOrder{c.Args, c.Env, c.Mounts, c.Credential, c.UserNamespace, c.PIDNamespace})
				if err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command("/proc/self/exe")
				cmd.Args = []string{parentName}
				cmd.Stdin = bytes.NewReader(order)
				output, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				pid := pidSaid(t, output)
				program, err := unix.PidfdOpen(pid, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer unix.Close(program)
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = cmd.Wait()
				fds := []unix.PollFd{{Fd: int32(program), Events: unix.POLLIN}}
				if n, err := eintr.Get(func() (int, error) { return unix.Poll(fds, int(time.Minute/time.Millisecond)) }); n != 1 {
					_ = unix.Kill(pid, unix.SIGKILL)
					t.Fatalf("the program outlives its parent: %v", err)
				}
				if after := look(t); !slices.Equal(before, after) {
					t.Errorf("the mount table was\n%s\nand is now\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
				}
			})
		}
	})
}

// pidSaid reads the process id, and that the program is ready.
func pidSaid(t *testing.T, output io.Reader) int {
	t.Helper()
	pid, ready := 0, false
	for in := bufio.NewScanner(output); !(pid > 0 && ready) && in.Scan(); {
		if in.Text() == "ready" {
			ready = true
		} else if _, err := fmt.Sscanf(in.Text(), "pid %d", &pid); err != nil {
			t.Fatalf("the parent says %q", in.Text())
		}
	}
	if pid == 0 || !ready {
		t.Fatal("the program did not begin")
	}
	return pid
}
