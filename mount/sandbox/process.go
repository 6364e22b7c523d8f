package sandbox

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
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

// Start begins the program and returns when it runs, or when it is known that it
// will not: an *[Error]. ctx ends the program as in [Run]; when it ends before
// the program runs, Start returns its cause. After an error nothing is left of
// it, and the configuration's streams are free, unless the process hangs in the
// kernel; that is waited for at most ten seconds. Wait need not be called.
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
	launching, interrupt := context.WithCancelCause(ctx)
	defer interrupt(nil)
	p := &Process{cmd: l.cmd, begun: make(chan struct{}), done: make(chan struct{})}
	if c.Signals != nil {
		go p.forward(c.Signals, interrupt)
	}
	go p.run(ctx, launching, l)
	select {
	case <-p.begun:
	case <-launching.Done():
		select {
		case <-p.begun: // or not: it may have begun before it could be ended
		case <-time.After(endAfter):
			return nil, context.Cause(launching)
		}
	}
	if p.failure != nil {
		p.endsSoon()
		return nil, p.failure
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

// forward sends the program its signals. Those that come before it has begun
// wait for it, and a deadly one ends the launch.
func (p *Process) forward(signals <-chan os.Signal, interrupt context.CancelCauseFunc) {
	var early []os.Signal
	for begun := p.begun; ; {
		select {
		case s, open := <-signals:
			switch {
			case !open:
				signals = nil
			case begun == nil:
				_ = p.Signal(s) // it has ended
			default:
				early = append(early, s)
				if isDeadly(s) {
					interrupt(died("begin the program", s))
				}
			}
		case <-begun:
			if p.failure != nil {
				return
			}
			begun = nil
			for _, s := range early {
				_ = p.Signal(s)
			}
		case <-p.done:
			return
		}
	}
}

// isDeadly reports whether a signal is one of those that people and supervisors
// end a program with.
func isDeadly(s os.Signal) bool {
	return slices.Contains([]os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT}, s)
}

// run keeps its thread for as long as the program runs: the signal for the
// death of the parent is sent when the thread ends that forked.
func (p *Process) run(ctx, launching context.Context, l *launch) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.done)

	if err := l.begin(launching); err != nil {
		p.failure = l.abandon(err)
	}
	l.closeAll()
	close(p.begun)
	if l.cmd.Process == nil {
		return
	}
	err := l.cmd.Wait()
	if p.failure == nil {
		p.code, p.err = ended(ctx, l.cmd.ProcessState, err)
	}
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
// executes the program. It returns an *Error or the cause of ctx.
func (l *launch) begin(ctx context.Context) error {
	if err := l.addIDMapped(ctx); err != nil {
		return orCause(ctx, err)
	}
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := l.cmd.Start(); err != nil {
		return orCause(ctx, startFailed(err))
	}
	spare := context.AfterFunc(ctx, func() { _ = l.cmd.Process.Kill() })
	defer spare()
	for _, f := range l.childs {
		f.Close()
	}
	l.childs = nil
	if l.namespace != nil {
		if err := mapIDs(ctx, l.cmd.Process.Pid, l.namespace); err != nil {
			return orCause(ctx, err)
		}
	}
	// A child that has died gives EPIPE; what it says counts.
	_ = l.order.send(l.orders)
	executes, failure := readAnswer(l.answers)
	switch {
	case !spare(): // also if it has just begun
		return context.Cause(ctx)
	case failure != nil:
		return failure
	case !executes:
		return as(ErrDied, "begin the program", "", nil)
	}
	return nil
}

// orCause returns why ctx has ended, where it has: then that is why err is.
func orCause(ctx context.Context, err *Error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// startFailed is for a child that was not made.
func startFailed(err error) *Error {
	const op = "start a process in new namespaces"
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		e := failed(op, "", err)
		e.Advice = "the machine, or the limits of this user (ulimit -u, ulimit -n) or of its cgroup, have no room for it"
		return e
	case errors.Is(err, unix.ENOENT):
		e := failed(op, "", err)
		e.Advice = "/proc must be mounted"
		return e
	}
	e := as(ErrNoNamespace, op, "", err)
	e.Advice = adviceUserNS
	return e
}

// abandon ends the child of a launch that failed, so that nothing of it is left,
// and returns why it did: the child's end may tell.
func (l *launch) abandon(err error) error {
	if l.cmd.Process == nil {
		return err
	}
	_ = l.cmd.Process.Kill()
	state, waitErr := l.cmd.Process.Wait() // what the streams still need Cmd.Wait does
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Cause != ErrDied || e.Signal != 0 || waitErr != nil {
		return err
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return died(e.Op, status.Signal())
	}
	e.Advice = adviceMain
	return e
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
