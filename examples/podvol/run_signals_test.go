package main

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// Ctrl-C that has ended the program does not also end what comes after it; the next
// one does.
func TestLateSignalsWereTheProgramsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			arrived os.Signal
			after   time.Duration
			ends    bool
		}{
			{unix.SIGINT, 0, false},
			{unix.SIGQUIT, arrivesWithin - 1, false},
			{unix.SIGINT, arrivesWithin, true},
			{unix.SIGTERM, 0, true},
			{unix.SIGUSR1, time.Hour, false},
		} {
			s := &signals{program: time.Now()}
			ctx, done := s.interruptible(t.Context())
			time.Sleep(tc.after)
			s.deliver(tc.arrived)
			if ended := ctx.Err() != nil; ended != tc.ends {
				t.Errorf("%v %v after the program's end: ended: %v", tc.arrived, tc.after, ended)
			}
			done()
		}
	})
}
