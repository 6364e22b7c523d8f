package calltrace

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Point is a moment in the life of a process: just before the N-th of the calls that
// count, or just after it. The zero Point never comes.
type Point struct {
	N     int
	After bool
}

func (p Point) String() string {
	return fmt.Sprintf("%s call %d", map[bool]string{false: "before", true: "after"}[p.After], p.N)
}

// ChangesBelow counts the calls that change a file below a directory, and those about mounts.
func ChangesBelow(dir string) func(Call) bool {
	return func(c Call) bool { return c.Changes && (c.Path == "" || Below(c.Path, dir)) }
}

// RunUntil runs the process and kills it at a point. counts is asked about each call, as At
// is. The process is gone when it returns: killed says whether that was because of the point,
// and call is what it was about to do, or had done. A process that ends in another way, but
// with exit code 0, fails the test with what it has said. Stdout, Stderr and At are not used;
// without a Limit it has five minutes.
func (p Process) RunUntil(t testing.TB, until Point, counts func(Call) bool) (killed bool, call string) {
	t.Helper()
	output, err := os.CreateTemp(t.TempDir(), "output-")
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	p.Stdout, p.Stderr = output, output
	if p.Limit == 0 {
		p.Limit = 5 * time.Minute
	}
	calls := 0
	p.At = func(c Call) Action {
		if !counts(c) {
			return Action{}
		}
		if calls++; calls != until.N {
			return Action{}
		}
		call = c.Text
		return Action{Kill: !until.After, KillAfter: until.After}
	}
	status, killed, err := p.Run()
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
