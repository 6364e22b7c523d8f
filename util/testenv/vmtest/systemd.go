package vmtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Systemd is systemd as a node has it: the first process of its pid namespace,
// with mounts and the root of a cgroup2 of its own. Its mounts are copies of
// the machine's of when it was started; /run and the temporary directory show the
// same on both sides.
type Systemd struct{ pid int }

const (
	systemdProgram = "/lib/systemd/systemd"
	systemdUnits   = "/run/systemd/system"
	// systemdTarget is all that it starts by itself: nothing.
	systemdTarget = "vmtest.target"
	// systemdTimeout is for what takes five seconds on a machine with nothing
	// else to do.
	systemdTimeout = 2 * time.Minute
)

// systemdInit gives what it runs the file systems of its namespaces.
const systemdInit = `mount --make-rprivate / && mount -t proc proc /proc && umount /sys/fs/cgroup && mount -t cgroup2 cgroup2 /sys/fs/cgroup && exec "$0" "$@"`

// StartSystemd starts systemd, of Debian's package of this name, with no
// service. The caller is a test in a machine ([Inside]), which has one at most.
// At the end of the test it is killed with all that it has started.
func StartSystemd(t testing.TB) *Systemd {
	t.Helper()
	if !Inside() {
		t.Fatal("systemd is started in a virtual machine only")
	}
	if _, err := os.Stat(systemdProgram); err != nil {
		t.Fatalf("%v; install systemd", err)
	}
	s := new(Systemd)
	if err := os.MkdirAll(systemdUnits, 0o755); err != nil {
		t.Fatal(err)
	}
	s.unit(t, systemdTarget, "[Unit]\nDescription=nothing at all\n")
	socket := filepath.Join(t.TempDir(), "notify")
	ready, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer ready.Close()
	s.start(t, socket)
	if err := awaitReady(ready); err != nil {
		t.Fatalf("systemd is not up: %v", err)
	}
	return s
}

func (s *Systemd) start(t testing.TB, socket string) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", systemdInit, systemdProgram, "--system", "--unit="+systemdTarget, "--log-target=console", "--show-status=no")
	// See systemd's "The Container Interface".
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "container=vmtest", "NOTIFY_SOCKET=" + socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP, Setsid: true}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		t.Fatalf("start systemd: %v", err)
	}
	s.pid = cmd.Process.Pid
	t.Cleanup(func() {
		// With it dies its pid namespace.
		if err := cmd.Process.Kill(); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // killed
	})
}

// awaitReady waits for the message that all is up.
func awaitReady(from *net.UnixConn) error {
	if err := from.SetReadDeadline(time.Now().Add(systemdTimeout)); err != nil {
		return err
	}
	message := make([]byte, 4096)
	for {
		n, err := from.Read(message)
		if err != nil {
			return err
		}
		for line := range strings.SplitSeq(string(message[:n]), "\n") {
			if line == "READY=1" {
				return nil
			}
		}
	}
}

// Command returns a command that runs where systemd's services run, in a cgroup
// of no unit. Its path is looked up in PATH.
func (s *Systemd) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"-t", strconv.Itoa(s.pid), "-m", "-p", "-C", "--", name}, args...)...)
}

// Service is a program that systemd runs as a service.
type Service struct {
	// Name is the unit's, without ".service".
	Name string
	// Command is the program's absolute path and its arguments.
	Command []string
	// Env is its whole environment but for what systemd adds.
	Env []string
	// Log is a file that receives its output.
	Log string
}

// Start starts a service. It does not wait for more than its program's start.
func (s *Systemd) Start(t testing.TB, service Service) {
	t.Helper()
	text := "[Unit]\nDefaultDependencies=no\n[Service]\nExecStart=" + strings.ReplaceAll(unitWords(service.Command...), "$", "$$") + "\n"
	for _, setting := range service.Env {
		text += "Environment=" + unitWords(setting) + "\n"
	}
	if service.Log != "" {
		text += fmt.Sprintf("StandardOutput=append:%[1]s\nStandardError=append:%[1]s\n", service.Log)
	}
	s.unit(t, service.Name+".service", text)
	s.Systemctl(t, "start", service.Name+".service")
}

// Stop stops a service as a node does that is shut down or upgraded: all
// processes of its cgroup are ended.
func (s *Systemd) Stop(t testing.TB, name string) {
	t.Helper()
	s.Systemctl(t, "stop", name+".service")
}

// Systemctl runs systemctl(1) and returns what it prints. An error ends the test.
func (s *Systemd) Systemctl(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), systemdTimeout)
	defer cancel()
	out, err := s.Command(ctx, "systemctl", append([]string{"--no-pager"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("systemctl %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (s *Systemd) unit(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(systemdUnits, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// unitWords writes words as a unit's file has them; see systemd.syntax(7). In a
// command, $ means something besides.
func unitWords(words ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`, "\n", `\n`)
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = `"` + escape.Replace(w) + `"`
	}
	return strings.Join(quoted, " ")
}
