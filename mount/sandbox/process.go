package sandbox

import (
	"context"
	"encoding/gob"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killedCode is the exit code of what SIGKILL ended.
const killedCode = 128 + int(unix.SIGKILL)

// Process is a program that runs in its sandbox. Its methods may be called at
// the same time.
type Process struct {
	cmd *exec.Cmd
	// begun is closed when it is known whether the program has begun, and done
	// when it has ended.
	begun, done chan struct{}
	// failure is set before begun is closed, code and err before done is.
	failure error
	code    int
	err     error
}

// Start begins the program and returns when it runs, or when it is known that
// it will not: an *[Error]. ctx ends the program as in [Run]; when it ends before
// the program runs, Start returns its cause. Whoever starts a program must call
// Wait. After an error nothing is left of it, nor does anything use the streams
// of the configuration any more, unless the process hangs in the kernel.
func Start(ctx context.Context, c Config) (*Process, error) {
	if isChild() { // else each would start the next
		e := as(ErrConfig, "start", "", errors.New("this process is to become a sandbox itself"))
		e.Advice = adviceMain
		return nil, e
	}
	if err := c.validate(); err != nil {
		return nil, err
	}
	l, err := prepare(ctx, &c)
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: l.cmd, begun: make(chan struct{}), done: make(chan struct{})}
	go p.run(ctx, l)
	select {
	case <-p.begun:
	case <-ctx.Done():
		p.endsSoon()
		return nil, context.Cause(ctx)
	}
	if p.failure != nil {
		p.endsSoon()
		return nil, p.failure
	}
	if c.Signals != nil {
		go p.forward(c.Signals)
	}
	return p, nil
}

// endsSoon waits for the end of a process that was killed, unless it takes
// longer than endAfter, and reports whether it has come.
func (p *Process) endsSoon() bool {
	select {
	case <-p.done:
		return true
	case <-time.After(endAfter):
		return false // it hangs in the kernel and ends when that lets it
	}
}

// PID is the program's process id, as the caller sees it.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends the program a signal; [os.ErrProcessDone] says that it has ended.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Wait waits for the end of the program and returns its exit code as [Run]
// does. Each call returns the same.
func (p *Process) Wait() (code int, err error) {
	<-p.done
	return p.code, p.err
}

func (p *Process) forward(signals <-chan os.Signal) {
	for {
		select {
		case s, open := <-signals:
			if !open {
				return
			}
			_ = p.Signal(s) // it has ended
		case <-p.done:
			return
		}
	}
}

// run keeps its thread for as long as the program runs: the signal for the
// death of the parent is sent when the thread ends that forked.
func (p *Process) run(ctx context.Context, l *launch) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.done)

	p.failure = l.begin(ctx)
	if p.failure != nil && l.cmd.Process != nil {
		_ = l.cmd.Process.Kill()
	}
	l.closeAll()
	close(p.begun)
	if l.cmd.Process == nil {
		return
	}
	err := l.cmd.Wait()
	p.code, p.err = ended(ctx, l.cmd.ProcessState, err)
}

// ended tells the end of the program from an error about it.
func ended(ctx context.Context, state *os.ProcessState, err error) (int, error) {
	if _, ok := errors.AsType[*exec.ExitError](err); ok || errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	status, ok := state.Sys().(syscall.WaitStatus)
	switch {
	case !ok:
		return 125, err
	case !status.Signaled():
		return status.ExitStatus(), err
	case ctx.Err() != nil && status.Signal() == unix.SIGKILL:
		return killedCode, context.Cause(ctx)
	}
	return 128 + int(status.Signal()), err
}

func exitCodeOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.ExitCode()
	}
	return killedCode
}

// launch is a child about to be started, and what it needs at hand.
type launch struct {
	cmd       *exec.Cmd
	order     order
	namespace *UserNamespace
	orders    *os.File   // to the child
	answers   *os.File   // from it
	childs    []*os.File // the child's ends of these
	trees     []*os.File // of idmapped mounts
}

// prepare makes everything that is needed before the child is there.
func prepare(ctx context.Context, c *Config) (_ *launch, err error) {
	l := &launch{cmd: command(ctx, c), order: orderOf(c), namespace: c.UserNamespace}
	defer func() {
		if err != nil {
			l.closeAll()
		}
	}()
	if l.cmd.SysProcAttr, err = attributes(c); err != nil {
		return nil, err
	}
	theirs, orders, err := os.Pipe()
	if err != nil {
		return nil, failed("make a pipe", "", err)
	}
	l.childs, l.orders = append(l.childs, theirs), orders
	answers, theirs, err := os.Pipe()
	if err != nil {
		return nil, failed("make a pipe", "", err)
	}
	l.childs, l.answers = append(l.childs, theirs), answers
	l.cmd.ExtraFiles = append(l.cmd.ExtraFiles, l.childs...)
	return l, nil
}

func command(ctx context.Context, c *Config) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{childName}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.WaitDelay = endAfter
	return cmd
}

func orderOf(c *Config) order {
	o := order{
		Args: c.Args, Env: c.Env, Dir: c.Dir, Root: c.Root, PIDNamespace: c.PIDNamespace,
		Credential: c.Credential, LimitCapabilities: c.Capabilities != nil, Capabilities: c.Capabilities, NoNewPrivileges: c.NoNewPrivileges,
	}
	for _, m := range c.Mounts {
		o.Mounts = append(o.Mounts, orderedMount{Mount: m})
	}
	if ns := c.UserNamespace; ns != nil {
		o.NewUser = true
		o.Builder = Credential{UID: inside(ns.UIDMappings), GID: inside(ns.GIDMappings)}
		if o.Credential == nil {
			o.Credential = &Credential{UID: o.Builder.UID, GID: o.Builder.GID, KeepGroups: true}
		}
	}
	return o
}

// begin starts the child, maps its ids, gives it its order, and waits until it
// executes the program.
func (l *launch) begin(ctx context.Context) error {
	if err := l.addIDMapped(ctx); err != nil {
		return err
	}
	if err := l.cmd.Start(); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		e := as(ErrNoNamespace, "start a process in new namespaces", "", err)
		e.Advice = adviceUserNS
		return e
	}
	for _, f := range l.childs {
		f.Close()
	}
	l.childs = nil
	if l.namespace != nil {
		if err := mapIDs(ctx, l.cmd.Process.Pid, l.namespace); err != nil {
			return err
		}
	}
	// A child that has died gives EPIPE; what it says counts.
	_ = gob.NewEncoder(l.orders).Encode(l.order)
	executes, failure := readAnswer(l.answers)
	switch {
	case failure != nil:
		return failure
	case !executes && ctx.Err() != nil:
		return context.Cause(ctx)
	case !executes:
		e := as(ErrDied, "wait for it", "", nil)
		e.Advice = adviceMain + "; if it does, the kernel's log may say what was killed"
		return e
	}
	return nil
}

// closeAll closes what the parent still holds.
func (l *launch) closeAll() {
	for _, f := range append(append(l.childs, l.trees...), l.orders, l.answers) {
		if f != nil {
			f.Close()
		}
	}
	l.childs, l.trees, l.orders, l.answers = nil, nil, nil, nil
}
