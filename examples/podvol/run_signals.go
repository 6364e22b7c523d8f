package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// signals directs the signals that would end podvol, or that programs take
// notice of: to whoever can be interrupted, or to the program that runs.
type signals struct {
	arriving chan os.Signal
	ended    chan struct{}

	mu      sync.Mutex
	deliver func(os.Signal)
}

// signalsKept is how many signals wait for a program that takes none.
const signalsKept = 16

// takeSignals begins to take them; until somebody wants them they are lost.
func takeSignals() *signals {
	s := &signals{arriving: make(chan os.Signal, signalsKept), ended: make(chan struct{}), deliver: func(os.Signal) {}}
	signal.Notify(s.arriving, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)
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

// interruptible returns a context that the next signal ends, until done is
// called.
func (s *signals) interruptible(ctx context.Context) (_ context.Context, done func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	lost := s.to(func(arrived os.Signal) {
		if arrived != unix.SIGUSR1 && arrived != unix.SIGUSR2 {
			cancel(fmt.Errorf("interrupted by signal %q", arrived))
		}
	})
	return ctx, func() { lost(); cancel(nil) }
}

// forwarded returns the signals that a program in this process group should
// have, until done is called. What a terminal sends to its foreground process
// group, the program has already.
func (s *signals) forwarded() (_ <-chan os.Signal, done func()) {
	program := make(chan os.Signal, signalsKept)
	lost := s.to(func(arrived os.Signal) {
		if (arrived == unix.SIGINT || arrived == unix.SIGQUIT) && inForeground() {
			return
		}
		select {
		case program <- arrived:
		default: // it has enough of them
		}
	})
	return program, lost
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
