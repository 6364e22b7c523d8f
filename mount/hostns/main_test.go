package hostns_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/hostns"
	"github.com/podvol/podvol/mount/sandbox"
	"github.com/podvol/podvol/util/testenv/containertest"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/silentfuse"
	"github.com/podvol/podvol/util/testenv/testtool"
)

const (
	// agentVar makes the test binary an agent in a container, which does one thing.
	agentVar = "PODVOL_HOSTNS_AGENT"
	// rootVar is the agent's root directory.
	rootVar = "PODVOL_HOSTNS_ROOT"
	// helperVar makes it a mount(8) that leaves a FUSE daemon behind, and daemonVar that daemon.
	helperVar, daemonVar = "PODVOL_HOSTNS_HELPER", "PODVOL_HOSTNS_DAEMON"
)

func TestMain(m *testing.M) {
	hostns.Main()
	sandbox.Main()
	switch {
	case os.Getenv(daemonVar) != "":
		os.Exit(beDaemon(os.Args[len(os.Args)-1]))
	case os.Getenv(helperVar) != "":
		os.Exit(beHelper(os.Args[1:]))
	case os.Getenv(agentVar) != "":
		os.Exit(beAgent())
	}
	os.Exit(m.Run())
}

// agent is what runs in the container.
type agent struct {
	root    string
	mounter *hostns.Mounter
	in      *bufio.Reader
}

// beAgent does what agentVar says. What goes wrong is on standard error.
func beAgent() int {
	scenario := agents()[os.Getenv(agentVar)]
	config := hostns.Config{Namespaces: os.Getenv("NAMESPACES"), Cgroup: os.Getenv("CGROUP")}
	config.Host.MountCommand = os.Getenv("MOUNT_COMMAND")
	config.Host.SystemdDir = "/nonexistent"
	a := &agent{root: os.Getenv(rootVar), mounter: hostns.New(config), in: bufio.NewReader(os.Stdin)}
	err := scenario(context.Background(), a)
	a.mounter.Close()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// node is a host with a root directory on a disk of its own, which is shared.
type node struct{ root string }

func newNode(t *testing.T) node {
	disk := testtool.MkdirAll(t, t.TempDir(), "disk")
	mounttest.Mount(t, mounttest.Tmpfs(disk)) // it goes with what agents leave in it
	mounttest.Mount(t, mount.Request{Target: disk, Options: []string{"rshared"}})
	return node{root: testtool.MkdirAll(t, disk, "kubelet")}
}

// container is an agent's, that sees the root directory as the manifest says.
func (n node) container(t *testing.T, scenario string, propagation mount.Propagation, env ...string) sandbox.Config {
	config := containertest.Config(t, sandbox.Mount{Source: n.root, Destination: n.root, Propagation: propagation})
	config.Env = append([]string{agentVar + "=" + scenario, rootVar + "=" + n.root}, env...)
	return config
}

// run runs an agent to its end.
func (n node) run(t *testing.T, scenario string, env ...string) (out string) {
	t.Helper()
	code, out, errOut := containertest.Run(t, n.container(t, scenario, mount.PropagationSlave, env...))
	if code != 0 {
		t.Fatalf("the agent ended with %d: %s", code, errOut)
	}
	return out
}

// running is an agent that goes on when it is told to.
type running struct {
	*sandbox.Process
	in  io.WriteCloser
	out *bufio.Reader
	end context.CancelFunc
}

func (n node) start(t *testing.T, config sandbox.Config) *running {
	t.Helper()
	stdinR, stdinW, err := os.Pipe()
	testtool.Must(t, err)
	stdoutR, stdoutW, err := os.Pipe()
	testtool.Must(t, err)
	config.Stdin, config.Stdout, config.Stderr = stdinR, stdoutW, os.Stderr
	ctx, cancel := context.WithCancel(t.Context())
	process, err := sandbox.Start(ctx, config)
	testtool.Must(t, err)
	stdinR.Close()
	stdoutW.Close()
	t.Cleanup(func() { cancel(); process.Wait(); stdinW.Close(); stdoutR.Close() })
	return &running{process, stdinW, bufio.NewReader(stdoutR), cancel}
}

// line is what the agent prints next.
func (r *running) line(t *testing.T) string {
	t.Helper()
	text, err := r.out.ReadString('\n')
	testtool.Must(t, err)
	return strings.TrimSpace(text)
}

func (r *running) goOn(t *testing.T) {
	t.Helper()
	_, err := io.WriteString(r.in, "\n")
	testtool.Must(t, err)
}

// pause prints a line and waits for one.
func (a *agent) pause(text string) error {
	fmt.Println(text)
	_, err := a.in.ReadString('\n')
	return err
}

func (a *agent) dir(name ...string) string {
	dir := filepath.Join(append([]string{a.root}, name...)...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		panic(err)
	}
	return dir
}

// script writes a mount(8) of the host's that runs the test binary.
func script(t *testing.T, n node, text string) string {
	path := filepath.Join(filepath.Dir(n.root), "mount")
	testtool.Must(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755))
	return path
}

// fuseCommand is a mount(8) on the host that leaves a FUSE daemon.
func fuseCommand(t *testing.T, n node) string {
	program, err := os.Executable()
	testtool.Must(t, err)
	return script(t, n, helperVar+"=1 exec "+program+` "$@"`+"\n")
}

// beHelper starts the daemon, and ends when that serves.
func beHelper(args []string) int {
	r, w, err := os.Pipe()
	if err != nil {
		return 1
	}
	cmd := exec.Command("/proc/self/exe", args[len(args)-1])
	cmd.Env = append(os.Environ(), daemonVar+"=1")
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return 1
	}
	w.Close()
	text, _ := io.ReadAll(r)
	if string(text) != "serves" {
		fmt.Println(string(text))
		return 32
	}
	return 0
}

// beDaemon serves an empty directory until that is unmounted.
func beDaemon(target string) int {
	signal.Ignore(syscall.SIGTERM)
	ready := os.NewFile(3, "ready")
	server, err := silentfuse.Mount("silent", target)
	if err != nil {
		fmt.Fprint(ready, err)
		return 1
	}
	fmt.Fprint(ready, "serves")
	ready.Close()
	<-server.Gone()
	return 0
}

// awaitEnd waits for a process to end, by its descriptor.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err == unix.ESRCH {
		return
	}
	testtool.Must(t, err)
	defer unix.Close(fd)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if n == 1 {
			return
		}
		if err != nil && err != unix.EINTR {
			t.Fatal(err)
		}
	}
}
