package kubecluster

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

// Process is a program that can be killed and started again. Its methods must not be
// called at the same time.
type Process struct {
	Name string   // of the program, and of its log
	Path string   // of the program
	Dir  string   // the working directory, which gets the log <Name>.log
	Args []string // without the program's own name
	Env  []string // added to the caller's environment

	cmd    *exec.Cmd
	exited chan struct{} // closed after the exit
	exit   error
}

func (p *Process) log() string { return filepath.Join(p.Dir, p.Name+".log") }

// Start starts the program. The program is killed when this process dies.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the program has its own
	cmd := exec.Command(p.Path, p.Args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.Env = p.Dir, log, log, append(os.Environ(), p.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	exited := make(chan struct{})
	p.cmd, p.exited = cmd, exited
	go func() {
		p.exit = cmd.Wait()
		close(exited)
	}()
	return nil
}

// Kill ends the program, and returns once it has ended. It does nothing if the program
// does not run.
func (p *Process) Kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // fails once it has ended
	<-p.exited
}

// Stop asks the program to end (SIGTERM), and returns once it has ended. It does nothing if
// the program does not run.
func (p *Process) Stop() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // fails once it has ended
	<-p.exited
}

// Exited is closed when the program has ended. It is nil before the first Start.
func (p *Process) Exited() <-chan struct{} { return p.exited }

const (
	readyWithin = 3 * time.Minute // of a machine with more to do
	readyEvery  = 50 * time.Millisecond
)

// Await calls ready until it returns nil. A process tells nobody when it is ready. It
// fails when the program ends, when ctx ends, and after three minutes.
func (p *Process) Await(ctx context.Context, ready func(context.Context) error) error {
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
			return fmt.Errorf("%s has ended: %w", p.Name, errors.Join(p.exit, err))
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w", p.Name, context.Cause(ctx), err)
		case <-again.C:
		}
	}
}

const tailLines = 60

// Tail returns the end of what the program has said.
func (p *Process) Tail() []byte {
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
