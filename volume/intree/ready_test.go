package intree_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/calltrace"
	util "github.com/podvol/podvol/volume/intree"
)

// readyVar has this test, in a process of its own, mark a directory.
const readyVar = "PODVOL_TEST_READY"

// After a power cut the mark must not be there without what it stands for, nor be
// gone once it was acknowledged, nor be back once it was cleared.
func TestReadyIsInOrderOnDisk(t *testing.T) {
	if dir := os.Getenv(readyVar); dir != "" {
		if err := util.SetReady(dir); err != nil {
			t.Fatal(err)
		}
		if err := util.ClearReady(dir); err != nil {
			t.Fatal(err)
		}
		return
	}
	dir, status := markTraced(t, 0)
	if want := []string{"syncfs", "made", "fsync", "unlinkat", "fsync"}; !slices.Equal(dir.steps, want) || status.ExitStatus() != 0 {
		t.Errorf("its steps are %v, want %v; exit code %d", dir.steps, want, status.ExitStatus())
	}
	if runtime.GOARCH != "amd64" { // of which calltrace can answer calls
		return
	}
	dir, status = markTraced(t, unix.EIO)
	if want := []string{"syncfs"}; !slices.Equal(dir.steps, want) || status.ExitStatus() != 1 || util.IsReady(dir.path) {
		t.Errorf("contents that cannot be synced: its steps are %v, want %v; exit code %d", dir.steps, want, status.ExitStatus())
	}
}

// markedDir is a directory, and what was done there about the mark.
type markedDir struct {
	path  string
	steps []string
}

// markTraced marks a directory and clears the mark again; syncfs is answered with
// an error, if there is one.
func markTraced(t *testing.T, synced unix.Errno) (dir *markedDir, status unix.WaitStatus) {
	t.Helper()
	output, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	dir = &markedDir{path: filepath.Join(t.TempDir(), "plugin", "volume")}
	mark, there := filepath.Join(dir.path, "ready"), false
	at := func(c calltrace.Call) calltrace.Action {
		if now := util.IsReady(dir.path); now && !there {
			dir.steps = append(dir.steps, "made")
			there = true
		}
		switch {
		case c.Name == "syncfs" && c.Path == dir.path:
			dir.steps = append(dir.steps, c.Name)
			return calltrace.Action{Err: synced}
		case c.Name == "fsync" && c.Path == dir.path, c.Name == "unlinkat" && c.Path == mark:
			dir.steps = append(dir.steps, c.Name)
		}
		return calltrace.Action{}
	}
	status, _, err = calltrace.Process{
		Args: []string{"-test.run=^TestReadyIsInOrderOnDisk$"}, Env: []string{readyVar + "=" + dir.path},
		Limit: 5 * time.Minute, Stdout: output, Stderr: output, At: at,
	}.Run()
	if err != nil {
		t.Fatal(err)
	}
	return dir, status
}
