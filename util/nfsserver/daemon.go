package nfsserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// startPatience is for a program's start on an emulated processor.
const startPatience = 30 * time.Second

// daemon is a program that runs in the foreground.
type daemon struct {
	name   string
	stop   func() // ends it and waits for that; idempotent
	output *locked
}

// startDaemon starts a program of the packages at a place and waits until it
// listens at a TCP port there, unless that is 0. It ends with the test, which shows what it has
// said if it failed.
func startDaemon(t testing.TB, at place, p Packages, port int, name string, args ...string) (*daemon, error) {
	cmd, err := p.command(context.Background(), name, args...)
	if err != nil {
		return nil, err
	}
	d := &daemon{name: name, output: &locked{}}
	cmd.Stdout, cmd.Stderr = d.output, d.output
	if err := at.do(cmd.Start); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	d.stop = sync.OnceFunc(func() {
		cmd.Process.Signal(syscall.SIGTERM) // so that it takes itself off rpcbind's list
		select {
		case <-ended:
		case <-time.After(startPatience):
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
	if port == 0 {
		return d, nil
	}
	return d, d.waitFor(at, port, ended)
}

func (d *daemon) waitFor(at place, port int, ended chan error) error {
	deadline := time.Now().Add(startPatience)
	for {
		err := at.do(func() error { return answersAt(port) })
		if err == nil {
			return nil
		}
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("%s has ended: %w: %s", d.name, errors.Join(err), d.output)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s does not listen at %d: %s", d.name, port, d.output)
		}
	}
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
	cmd, err := p.command(ctx, name, args...)
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
