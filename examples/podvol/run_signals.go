package main

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

// signals directs the signals that would end podvol, or that programs take
// notice of: to whoever can be interrupted, or to the program that runs.
type signals struct {
	arriving chan os.Signal
	ended    chan struct{}

	mu      sync.Mutex
	deliver func(os.Signal)
	program time.Time // when the program that was run ended
}

// signalsKept is how many signals wait for their delivery.
const signalsKept = 16

// takeSignals begins to take them; until somebody wants them they are lost.
func takeSignals() *signals {
	s := &signals{arriving: make(chan os.Signal, signalsKept), ended: make(chan struct{}), deliver: func(os.Signal) {}}
	if wanted := notIgnored(unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2); len(wanted) > 0 {
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

// stop gives the signals back.
func (s *signals) stop() {
	signal.Stop(s.arriving)
	close(s.ended)
}

func (s *signals) to(deliver func(os.Signal)) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deliver = deliver
	return func() { s.to(func(os.Signal) {}) }
}

// notIgnored leaves out the signals that the caller has had ignored, as nohup
// and shells do for what is to go on without them. (No signal at all means every
// one to [signal.Notify].)
func notIgnored(wanted ...os.Signal) []os.Signal {
	return slices.DeleteFunc(wanted, signal.Ignored)
}

// arrivesWithin is how long after the end of a program Ctrl-C may still be the one
// that ended it: the terminal sends it to both, and podvol may see the end first.
// Nobody presses it twice that fast.
const arrivesWithin = 100 * time.Millisecond

// wasThePrograms reports whether a signal was meant for the program that has just
// ended. The caller holds the lock.
func (s *signals) wasThePrograms(arrived os.Signal) bool {
	return (arrived == unix.SIGINT || arrived == unix.SIGQUIT) && time.Since(s.program) < arrivesWithin
}

// interruptible returns a context that the next signal ends, until done is
// called.
func (s *signals) interruptible(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	lost := s.to(func(arrived os.Signal) {
		if endsPodvol(arrived) && !s.wasThePrograms(arrived) {
			cancel(bySignal(arrived))
		}
	})
	return ctx, func() { lost(); cancel(nil) }
}

func endsPodvol(s os.Signal) bool { return s != unix.SIGUSR1 && s != unix.SIGUSR2 }

// asksToEnd reports whether a signal is one by which people, and terminals, end
// programs.
func asksToEnd(s unix.Signal) bool {
	return s == unix.SIGHUP || s == unix.SIGINT || s == unix.SIGQUIT || s == unix.SIGTERM
}

func bySignal(s os.Signal) error { return fmt.Errorf("interrupted by signal %q", s) }

// interruptedError says that a program did not begin because podvol was told to
// end.
type interruptedError struct {
	program string
	err     error
}

func (e *interruptedError) Error() string {
	return fmt.Sprintf("interrupted before %s was run: %v", e.program, e.err)
}

func (e *interruptedError) Unwrap() error { return e.err }

// beginsWithin is how long a program that is about to begin may take when it is
// interrupted. It may have begun already without our knowing, and then it is to
// get the signal rather than to be killed.
const beginsWithin = time.Second

// run runs a program in its sandbox. Until it has begun, the end of ctx and
// signals end that, with an *interruptedError; from then on it is the program's
// affair when to end, and the signals are its.
func (s *signals) run(ctx context.Context, c sandbox.Config) (code int, err error) {
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
		return exitRunFailed, &interruptedError{c.Args[0], context.Cause(ctx)}
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
		return exitRunFailed, &interruptedError{program, interrupted}
	}
	failed, ok := errors.AsType[*sandbox.Error](err)
	switch {
	case !ok:
		return exitRunFailed, err
	case asksToEnd(failed.Signal):
		// Ctrl-C is for the whole process group, and podvol may see a helper's
		// end before its own signal.
		return exitRunFailed, &interruptedError{program, err}
	default:
		return failed.ExitCode(), err
	}
}

// forward sends a signal to a program in this process group. What a terminal
// sends to its foreground process group, the program has already.
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
