package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// process is a program that can be killed and started again.
type process struct {
	name string // also of its binary
	path string
	dir  string // its working directory, and for its log
	args []string

	cmd    *exec.Cmd
	exited chan struct{} // closed after the exit
	exit   error
}

func (p *process) log() string { return filepath.Join(p.dir, p.name+".log") }

// start starts the program. Should this process die, so does it.
func (p *process) start() error {
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the program has its own
	cmd := exec.Command(p.path, p.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w (%s must name a directory with it)", p.name, err, assetsVar)
	}
	exited := make(chan struct{})
	p.cmd, p.exited = cmd, exited
	go func() {
		p.exit = cmd.Wait()
		close(exited)
	}()
	return nil
}

// kill ends the program, and returns once it has ended.
func (p *process) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // fails once it has ended
	<-p.exited
}

const (
	readyWithin = 3 * time.Minute // of a machine with more to do
	readyEvery  = 50 * time.Millisecond
)

// await asks until ready returns nil. A process tells nobody when it is ready.
func (p *process) await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("not within %s", readyWithin))
	defer cancel()
	again := time.NewTicker(readyEvery)
	defer again.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s has ended: %w", p.name, errors.Join(p.exit, err))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w", p.name, context.Cause(ctx), err)
		case <-again.C:
		}
	}
}

const tailLines = 60

// tail returns the end of what the program has said.
func (p *process) tail() []byte {
	said, err := os.ReadFile(p.log())
	if err != nil {
		return []byte(err.Error())
	}
	at := len(said)
	for range tailLines + 1 {
		if at = bytes.LastIndexByte(said[:at], '\n'); at < 0 {
			return said
		}
	}
	return said[at+1:]
}
