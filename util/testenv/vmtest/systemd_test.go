package vmtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/vmtest"
)

// A service that leaves one process in its own cgroup and one in a scope.
func TestSystemd(t *testing.T) {
	vmtest.Run(t, func(t *testing.T) {
		s := vmtest.StartSystemd(t)
		dir := t.TempDir()
		up := fifo(t, filepath.Join(dir, "up"))
		const script = `
			setsid sleep 7001 &
			systemd-run --description="a test's" --scope -- sh -c 'setsid sleep 7002 &'
			echo "$1 $GREETING" >"$0"
			exec sleep 7003`
		log := filepath.Join(dir, "log")
		s.Start(t, vmtest.Service{Name: "agent", Log: log, Env: []string{"PATH=" + os.Getenv("PATH"), `GREETING=a "b" $c %d`},
			Command: []string{"/bin/sh", "-c", script, up, `100% "$HOME"`}})
		said, err := os.ReadFile(up) // waits for its writer
		if want := "100% \"$HOME\" a \"b\" $c %d\n"; err != nil || string(said) != want {
			t.Fatalf("the service says %q (%v), want %q", said, err, want)
		}
		s.Stop(t, "agent")
		out, err := s.Command(t.Context(), "ps", "-eo", "args").CombinedOutput()
		if err != nil {
			t.Fatalf("ps: %v: %s", err, out)
		}
		for process, want := range map[string]bool{"sleep 7001": false, "sleep 7002": true, "sleep 7003": false} {
			if lives := strings.Contains(string(out), process); lives != want {
				t.Errorf("after the service's end, %q lives: %v, want %v", process, lives, want)
			}
		}
		if t.Failed() {
			text, err := os.ReadFile(log)
			t.Logf("%s\nlog: %s (%v)", out, text, err)
		}
	})
}

func fifo(t *testing.T, path string) string {
	t.Helper()
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
