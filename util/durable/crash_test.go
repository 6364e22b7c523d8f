package durable_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/testenv/calltrace"
)

// createVar has this test, in a process of its own, make the file.
const createVar = "PODVOL_TEST_CREATE"

// Where others may be writing nobody can sweep, so that a crash must not leave what
// only a sweep would remove, save where files cannot be made without a name.
func TestACrashWhileCreatingLeavesNothingElse(t *testing.T) {
	if path := os.Getenv(createVar); path != "" {
		if err := durable.Create(path, []byte("contents"), 0o640); err != nil {
			t.Fatal(err)
		}
		return
	}
	unnamed := true
	if fd, err := unix.Open(t.TempDir(), unix.O_TMPFILE|unix.O_WRONLY, 0o600); err != nil {
		unnamed = false // nor does the file system of the temporary directory
	} else {
		unix.Close(fd)
	}
	killedEverywhere(t, 0, !unnamed)
	if runtime.GOARCH == "amd64" { // of which calltrace can answer calls
		killedEverywhere(t, unix.EOPNOTSUPP, true)
	}
}

// killedEverywhere kills the creation of a file before each of its calls. One without
// a name is refused with an error, if there is one.
func killedEverywhere(t *testing.T, refused unix.Errno, leavesTemp bool) {
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	for n, killed := 1, true; killed; n++ {
		dir, calls := t.TempDir(), 0
		at := func(c calltrace.Call) calltrace.Action {
			if !c.Changes || !calltrace.Below(c.Path, dir) {
				return calltrace.Action{}
			}
			if refused != 0 && c.Path == dir && c.Name == "openat" {
				return calltrace.Action{Err: refused}
			}
			calls++
			return calltrace.Action{Kill: calls == n}
		}
		_, killed, err = calltrace.Process{
			Args: []string{"-test.run=^TestACrashWhileCreatingLeavesNothingElse$"}, Env: []string{createVar + "=" + filepath.Join(dir, "file")},
			Limit: time.Minute, Stdout: output, Stderr: output, At: at,
		}.Run()
		if err != nil {
			t.Fatal(err)
		}
		if !killed && n < 4 {
			t.Errorf("it made only %d calls", calls)
		}
		file, temps := 0, 0
		for _, name := range names(t, dir) {
			switch {
			case name == "file":
				file++
			case durable.IsTemp(name) && killed && leavesTemp:
				temps++
			default:
				t.Errorf("%v: killed at call %d (%v): left %s", refused, n, killed, name)
			}
		}
		if temps > 1 || file == 0 && !killed {
			t.Errorf("%v: killed at call %d (%v): left %v", refused, n, killed, names(t, dir))
		}
		if data, err := os.ReadFile(filepath.Join(dir, "file")); file == 1 && (err != nil || string(data) != "contents") {
			t.Errorf("%v: killed at call %d: the file has %q, %v", refused, n, data, err)
		}
	}
}
