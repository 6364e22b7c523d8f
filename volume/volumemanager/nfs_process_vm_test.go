package volumemanager_test

import (
	"errors"
	"fmt"
	"io"
	"os/exec"
	"testing"
	"time"

	"github.com/podvol/podvol/util/testenv/nfsserver"
)

// processWrites is how much a process writes, in bytes: more than one request.
const processWrites = 20_000_000

// process is one of a container's, which has a file of a volume open.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	ended chan struct{}
	err   error // how it ended, once ended is closed
}

// startReader opens an existing file; startWriter makes one, to which
// [volumemanager.process.write] writes.
func startReader(t *testing.T, dir, name string) *process {
	t.Helper()
	return startProcess(t, dir, "exec 3<"+name+"; echo open; read end")
}

func startWriter(t *testing.T, dir, name string) *process {
	t.Helper()
	return startProcess(t, dir, "exec 3>"+name+"; echo open; read go && exec head -c $0 /dev/zero >&3")
}

func startProcess(t *testing.T, dir, script string) *process {
	t.Helper()
	p := &process{cmd: exec.Command("sh", "-c", script, fmt.Sprint(processWrites)), ended: make(chan struct{})}
	p.cmd.Dir = dir
	in, inErr := p.cmd.StdinPipe()
	out, outErr := p.cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, p.cmd.Start()); err != nil {
		t.Fatal(err)
	}
	p.in = in
	_, err := io.ReadFull(out, make([]byte, len("open\n")))
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = in.Close() // it may have ended
		<-p.ended
	})
	if err != nil {
		t.Fatalf("the process did not open its file: %v", err)
	}
	return p
}

// write begins to write; the process ends when all has reached the server.
func (p *process) write(t *testing.T) {
	t.Helper()
	if _, err := p.in.Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
}

// hangs fails the test unless the process is still there after a while.
func (p *process) hangs(t *testing.T, what string) {
	t.Helper()
	select {
	case <-time.After(2 * time.Second):
	case <-p.ended:
		t.Fatalf("%s has ended by itself: %v", what, p.cmd.ProcessState)
	}
}

// kill is what happens to a deleted pod's processes. Those that wait for a server
// to take what they wrote do not end by it.
func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
}

// hasEnded tells without waiting.
func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// killedWriter is a container's process that has written to a volume more than the
// server has got, and was killed.
func killedWriter(t *testing.T, s *nfsserver.Server, dir string) {
	t.Helper()
	p := startWriter(t, dir, "big")
	s.Drop()
	p.write(t)
	p.hangs(t, "the writer")
	p.kill(t)
}
