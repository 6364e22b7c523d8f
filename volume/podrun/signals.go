package podrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/sandbox"
)

// Signals directs the signals that would end podvol, or that programs handle.
// They go to a call that can be interrupted, or to the running program.
type Signals struct {
	arriving chan os.Signal
	ended    chan struct{}

	mu      sync.Mutex
	deliver func(os.Signal)
	program time.Time // when the program that was run ended
}

// signalsKept is how many signals wait for their delivery.
const signalsKept = 16

// TakeSignals begins to take the signals of this process, until Stop. The process
// must not take them elsewhere. Signals are lost until [Signals.Run] or
// [Signals.Interruptible].
func TakeSignals() *Signals {
	s := &Signals{arriving: make(chan os.Signal, signalsKept), ended: make(chan struct{}), deliver: func(os.Signal) {}}
	if wanted := NotIgnored(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2); len(wanted) > 0 {
		signal.Notify(s.arriving, wanted...)
	}
	go func() {
		for {
			select {
			case arrived := <-s.arriving:
				s.mu.Lock()
				s.deliver(arrived)
				s.mu.Unlock()
			case <-s.ended:
				return
			}
		}
	}()
	return s
}

// Stop ends the taking of signals.
func (s *Signals) Stop() {
	signal.Stop(s.arriving)
	close(s.ended)
}

func (s *Signals) to(deliver func(os.Signal)) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deliver = deliver
	return func() { s.to(func(os.Signal) {}) }
}

// NotIgnored leaves out the signals that the caller has ignored. nohup and shells
// ignore signals for programs that go on without them. (No signal at all means
// every signal to [signal.Notify].)
func NotIgnored(wanted ...os.Signal) []os.Signal {
	return slices.DeleteFunc(wanted, signal.Ignored)
}

// arrivesWithin is how long after the end of a program a Ctrl-C may still be the
// one that ended it. The terminal sends it to both, and podvol may see the end
// first. People do not press it twice that fast.
const arrivesWithin = 100 * time.Millisecond

// wasThePrograms reports whether a signal was meant for the program that has just
// ended. The caller holds the lock.
func (s *Signals) wasThePrograms(arrived os.Signal) bool {
	return (arrived == unix.SIGINT || arrived == unix.SIGQUIT) && time.Since(s.program) < arrivesWithin
}

// Interruptible returns a context that the next signal ends, until done is
// called.
func (s *Signals) Interruptible(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	lost := s.to(func(arrived os.Signal) {
		if endsPodvol(arrived) && !s.wasThePrograms(arrived) {
			cancel(bySignal(arrived))
		}
	})
	return ctx, func() { lost(); cancel(nil) }
}

func endsPodvol(s os.Signal) bool { return s != unix.SIGUSR1 && s != unix.SIGUSR2 }

// asksToEnd reports whether a signal is one with which people, and terminals, end
// programs.
func asksToEnd(s unix.Signal) bool {
	return s == unix.SIGHUP || s == unix.SIGINT || s == unix.SIGQUIT || s == unix.SIGTERM
}

func bySignal(s os.Signal) error { return fmt.Errorf("interrupted by signal %q", s) }

// InterruptedError says that a program did not begin because podvol received a
// signal to end.
type InterruptedError struct {
	// Program is the program's name.
	Program string
	Err     error
}

func (e *InterruptedError) Error() string {
	return fmt.Sprintf("interrupted before %s was run: %v", e.Program, e.Err)
}

func (e *InterruptedError) Unwrap() error { return e.Err }

// beginsWithin is how long an interrupted program may take to begin. It may have
// begun already without our knowledge. Then it must get the signal and not be
// killed.
const beginsWithin = time.Second

// ExitFailed is the exit code if the program could not be run: 1 and 2 are the
// program's own. Shells and docker run use the same, with 126 for a program that
// cannot be executed and 127 for a missing one.
const ExitFailed = 125

// Run runs a program in its sandbox. Before the program has begun, the end of ctx
// and signals end the run, with an *InterruptedError. After that, the program
// gets the signals and decides when to end.
func (s *Signals) Run(ctx context.Context, c sandbox.Config) (code int, err error) {
	beginning, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	begun := make(chan struct{})
	interrupt := func(why error) {
		go func() {
			select {
			case <-begun:
			case <-time.After(beginsWithin):
				cancel(why)
			}
		}()
	}
	var held []os.Signal // guarded by s.mu
	var interrupted error
	lost := s.to(func(arrived os.Signal) {
		held = append(held, arrived)
		if endsPodvol(arrived) && interrupted == nil {
			interrupted = bySignal(arrived)
			interrupt(interrupted)
		}
	})
	defer lost()
	if ctx.Err() != nil {
		return ExitFailed, &InterruptedError{c.Args[0], context.Cause(ctx)}
	}
	defer context.AfterFunc(ctx, func() { interrupt(context.Cause(ctx)) })()

	process, err := sandbox.Start(beginning, c)
	close(begun)
	if err != nil {
		lost() // no signal comes any more
		return failureToRun(c.Args[0], err, cmp.Or(interrupted, context.Cause(beginning)))
	}
	s.mu.Lock()
	for _, early := range held {
		forward(process, early)
	}
	s.deliver = func(arrived os.Signal) { forward(process, arrived) }
	s.mu.Unlock()
	code, err = process.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.program = time.Now()
	return code, err
}

func failureToRun(program string, err, interrupted error) (int, error) {
	if interrupted != nil {
		return ExitFailed, &InterruptedError{program, interrupted}
	}
	failed, ok := errors.AsType[*sandbox.Error](err)
	switch {
	case !ok:
		return ExitFailed, err
	case asksToEnd(failed.Signal):
		// Ctrl-C is for the whole process group, and podvol may see a helper's
		// end before its own signal.
		return ExitFailed, &InterruptedError{program, err}
	default:
		return failed.ExitCode(), err
	}
}

// forward sends a signal to a program in this process group. The program already
// has the signals that a terminal sends to its foreground process group.
func forward(program *sandbox.Process, arrived os.Signal) {
	if (arrived == unix.SIGINT || arrived == unix.SIGQUIT) && inForeground() {
		return
	}
	_ = program.Signal(arrived) // it has ended
}

// inForeground reports whether this process belongs to its terminal's
// foreground process group.
func inForeground() bool {
	terminal, err := os.OpenFile("/dev/tty", os.O_RDONLY|unix.O_NOCTTY, 0)
	if err != nil {
		return false // there is none
	}
	defer terminal.Close()
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
