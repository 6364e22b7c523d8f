package processes

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Processes that an earlier agent has left are ended before their pods' volumes
// go; others that have got their numbers are left alone.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	left, err := newLeftovers(dir)
	if err != nil {
		t.Fatal(err)
	}
	ours, others := exec.Command("sleep", "1000"), exec.Command("sleep", "1000")
	for _, c := range []*exec.Cmd{ours, others} {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
	}
	defer others.Process.Kill()
	if err := os.MkdirAll(filepath.Join(dir, "pod"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := left.note("pod", "ours", ours.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := left.note("pod", "others", others.Process.Pid); err != nil {
		t.Fatal(err)
	}
	noted, err := os.ReadFile(left.file("pod", "others"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(left.file("pod", "others"), append(noted, '0'), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := left.end(t.Context(), "pod"); err != nil {
		t.Fatal(err)
	}
	if err := ours.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("our own: %v", err)
	}
	if is, err := beginning(others.Process.Pid); err != nil || is == "" {
		t.Errorf("another's: %v", err)
	}
	if err := left.end(t.Context(), "pod"); err != nil { // and nothing is noted any more
		t.Error(err)
	}
	if err := left.drop("pod"); err != nil {
		t.Error(err)
	}
}

// A process that has ended before it could be noted has run all the same.
func TestEndedProcessesAreNotNoted(t *testing.T) {
	left, err := newLeftovers(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	const ended = 1 << 30 // more than any process has
	if err := left.note("pod", "short", ended); err != nil {
		t.Error(err)
	}
	if pods, err := left.pods(); err != nil || len(pods) > 0 {
		t.Errorf("noted are %q, %v", pods, err)
	}
}
