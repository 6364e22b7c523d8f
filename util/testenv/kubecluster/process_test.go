package kubecluster

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/noleak"
)

func TestMain(m *testing.M) { noleak.Main(m) }

// parentVar makes this process the one that is killed.
const parentVar = "KUBECLUSTER_PARENT"

func TestProcessesDieWithAKilledTest(t *testing.T) {
	if os.Getenv(parentVar) != "" {
		p := &Process{Name: "sleep", Path: "/bin/sleep", Dir: t.TempDir(), Args: []string{"600"}}
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		fmt.Println("child", p.cmd.Process.Pid)
		<-p.exited
		return
	}
	parent := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
	parent.Env = append(os.Environ(), parentVar+"=1", "TMPDIR="+t.TempDir())
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "child")))
	if err != nil {
		t.Fatal(err)
	}
	child, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(child)
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // killed
	for polled := []unix.PollFd{{Fd: int32(child), Events: unix.POLLIN}}; ; {
		n, err := unix.Poll(polled, 30_000)
		if err == unix.EINTR {
			continue
		}
		if n != 1 || err != nil {
			t.Errorf("process %d outlives the test that started it (%v)", pid, err)
		}
		return
	}
}

func TestAReservedPortIsFreeForWhoSharesIt(t *testing.T) {
	p, err := ReservePort()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	address := fmt.Sprintf("127.0.0.1:%d", p.Number)
	if other, err := net.Listen("tcp", address); err == nil {
		other.Close()
		t.Errorf("%s can be taken by anyone", address)
	}
	sharing := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	}}
	l, err := sharing.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 10 { // connections never go to the socket that does not listen
		dialed, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		accepted.Close()
		dialed.Close()
	}
}

func TestTheTailOfALog(t *testing.T) {
	p := &Process{Name: "x", Dir: t.TempDir()}
	var said strings.Builder
	for i := range 100 {
		fmt.Fprintf(&said, "line %d\n", i)
	}
	if err := os.WriteFile(p.log(), []byte(said.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(p.Tail())), "\n")
	if len(lines) != tailLines || lines[0] != "line 40" || lines[tailLines-1] != "line 99" {
		t.Errorf("%d lines, from %q to %q", len(lines), lines[0], lines[len(lines)-1])
	}
	if err := os.WriteFile(p.log(), []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := string(p.Tail()); got != "short" {
		t.Errorf("the tail is %q", got)
	}
}
