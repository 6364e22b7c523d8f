package volumemanager_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/calltrace"
)

// killPoint is a moment in the life of a process: just before or just after
// the n-th of its system calls that change something.
type killPoint struct {
	n     int
	after bool
}

func (k killPoint) String() string {
	return fmt.Sprintf("%s call %d", map[bool]string{false: "before", true: "after"}[k.after], k.n)
}

// runUntil runs the test binary with these arguments and variables, and kills
// it at the point; calls about files that are not below a directory do not count.
// The process is gone when it returns: killed says whether that was because of
// the point, or it had ended well before.
func runUntil(t *testing.T, args, env []string, below string, until killPoint) (killed bool, call string) {
	t.Helper()
	output, err := os.CreateTemp(t.TempDir(), "output-")
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	calls := 0
	at := func(c calltrace.Call) calltrace.Action {
		if !c.Changes || c.Path != "" && !calltrace.Below(c.Path, below) {
			return calltrace.Action{}
		}
		if calls++; calls != until.n {
			return calltrace.Action{}
		}
		call = c.Text
		return calltrace.Action{Kill: !until.after, KillAfter: until.after}
	}
	status, killed, err := calltrace.Process{Args: args, Env: env, Stdout: output, Stderr: output, Limit: 5 * time.Minute, At: at}.Run()
	if err != nil {
		t.Fatal(err)
	}
	if killed && status.Signal() == unix.SIGKILL {
		return true, call
	}
	if !status.Exited() || status.ExitStatus() != 0 {
		said, _ := os.ReadFile(output.Name())
		t.Fatalf("%v: the traced process ended by itself, or was too slow: %#x\n%s", until, uint32(status), said)
	}
	return false, ""
}
