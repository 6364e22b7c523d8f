package nfsserver

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// What programs may take to start and to end, on an emulated processor.
const (
	startPatience = 2 * time.Minute
	stopPatience  = 4 * time.Second // some hang in their shut-down now and then
)

// daemon is a program that runs in the foreground.
type daemon struct {
	name    string
	stop    func() // ends it and waits for that; idempotent
	process *os.Process
	output  *locked
}

// startDaemon starts a program of the packages at a place and waits until it is
// ready there; nil means that nobody needs to wait. It ends with the test, which
// shows what it has said if it failed.
func startDaemon(t testing.TB, at place, p Packages, ready func(*daemon) bool, name string, args ...string) (*daemon, error) {
	cmd, err := p.Command(context.Background(), name, args...)
	if err != nil {
		return nil, err
	}
	d := &daemon{name: name, output: &locked{}}
	cmd.Stdout, cmd.Stderr = d.output, d.output
	if err := at.do(cmd.Start); err != nil {
		return nil, err
	}
	d.process = cmd.Process
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	d.stop = sync.OnceFunc(func() {
		cmd.Process.Signal(syscall.SIGTERM) // so that it takes itself off rpcbind's list
		select {
		case <-ended:
		case <-time.After(stopPatience):
			cmd.Process.Kill()
			<-ended
		}
	})
	t.Cleanup(func() {
		d.stop()
		if t.Failed() {
			t.Logf("%s said: %s", name, d.output)
		}
	})
	if ready == nil {
		return d, nil
	}
	return d, d.waitFor(at, ready, ended)
}

// listens is ready once a TCP port of its place is open.
func listens(port int) func(*daemon) bool {
	return func(*daemon) bool { return answersAt(port) == nil }
}

// says is ready once it has said so.
func says(text string) func(*daemon) bool {
	return func(d *daemon) bool { return strings.Contains(d.output.String(), text) }
}

func (d *daemon) waitFor(at place, ready func(*daemon) bool, ended chan error) error {
	deadline := time.Now().Add(startPatience)
	for {
		isReady := false
		at.do(func() error {
			isReady = ready(d)
			return nil
		})
		if isReady {
			return nil
		}
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("%s has ended: %w: %s", d.name, err, d.output)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s is not ready: %s", d.name, d.output)
		}
	}
}

// reload has it read its configuration again, and waits until it says so.
func (d *daemon) reload(done string) error {
	said := strings.Count(d.output.String(), done)
	if err := d.process.Signal(syscall.SIGHUP); err != nil {
		return err
	}
	for deadline := time.Now().Add(startPatience); strings.Count(d.output.String(), done) == said; {
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has not read its configuration again: %s", d.name, d.output)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil
}

func answersAt(port int) error {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		conn.Close()
	}
	return err
}

// runTool runs a program of the packages at a place to its end.
func runTool(ctx context.Context, at place, p Packages, name string, args ...string) error {
	cmd, err := p.Command(ctx, name, args...)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := at.do(cmd.Run); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out.Bytes())
	}
	return nil
}

// locked is a buffer that may be read while it is written.
type locked struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *locked) Write(data []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(data)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}
