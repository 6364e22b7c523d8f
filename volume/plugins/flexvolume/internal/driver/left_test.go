package driver

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/testtool"
)

// What an agent that died has left of one call ends. Daemons, other calls' programs and those of
// calls that have ended in this process do not.
func TestEndLeft(t *testing.T) {
	session, err := unix.Getsid(0)
	testtool.Must(t, err)
	call := []string{"mount", t.TempDir()}
	start := func(agent int, daemon bool, args ...string) *exec.Cmd {
		program := exec.CommandContext(t.Context(), "sleep", "300")
		program.Env = append(os.Environ(), mark(session, agent, args))
		program.SysProcAttr = &syscall.SysProcAttr{Setsid: daemon}
		testtool.Must(t, program.Start())
		return program
	}
	dead := os.Getpid() + 1<<22 // no process has this number
	left := start(dead, false, call...)
	kept := map[string]*exec.Cmd{
		"a daemon":                     start(dead, true, call...),
		"a program of this process":    start(os.Getpid(), false, call...),
		"a program of another call":    start(dead, false, "unmount", call[1]),
		"a program of another's mount": start(dead, false, "mount", call[1]+"/below"),
	}
	testtool.Must(t, EndLeft(t.Context(), call[0], call[1]))
	if by := endOf(t, left); by != unix.SIGKILL {
		t.Errorf("what was left ends by signal %d", by)
	}
	for name, program := range kept {
		testtool.Must(t, program.Process.Signal(unix.SIGTERM))
		if by := endOf(t, program); by != unix.SIGTERM {
			t.Errorf("%s ended by signal %d", name, by)
		}
	}
}

// endOf waits for a program, and returns the signal that ended it.
func endOf(t *testing.T, program *exec.Cmd) unix.Signal {
	t.Helper()
	state, err := program.Process.Wait()
	testtool.Must(t, err)
	return state.Sys().(syscall.WaitStatus).Signal()
}
