package podrun

import (
	"errors"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/sandbox"
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
			s := &Signals{program: time.Now()}
			ctx, done := s.Interruptible(t.Context())
			time.Sleep(tc.after)
			s.deliver(tc.arrived)
			if ended := ctx.Err() != nil; ended != tc.ends {
				t.Errorf("%v %v after the program's end: ended: %v", tc.arrived, tc.after, ended)
			}
			done()
		}
	})
}

// What a process group was sent may reach its members in any order.
func TestRunIsInterruptedWithItsHelpers(t *testing.T) {
	for s, want := range map[unix.Signal]int{
		unix.SIGHUP: ExitFailed, unix.SIGINT: ExitFailed, unix.SIGQUIT: ExitFailed, unix.SIGTERM: ExitFailed,
		unix.SIGKILL: 128 + 9, unix.SIGSEGV: 128 + 11, 0: ExitFailed,
	} {
		died := &sandbox.Error{Op: "newuidmap", Cause: sandbox.ErrDied, Signal: s}
		code, err := failureToRun("echo", died, nil)
		_, interrupted := errors.AsType[*InterruptedError](err)
		if code != want || interrupted != (s != 0 && want == ExitFailed) || !errors.Is(err, sandbox.ErrDied) {
			t.Errorf("where a helper died of %v: %d, %v", s, code, err)
		}
	}
}
