package projectquota_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/podvol/podvol/util/testenv/calltrace"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// crashVar names the directory of TestCrashScenario.
const crashVar = "PODVOL_PROJECTQUOTA_CRASH"

// TestCrashScenario is what TestKilledAtEverySystemCall starts.
func TestCrashScenario(t *testing.T) {
	root := os.Getenv(crashVar)
	if root == "" {
		return
	}
	d := diskAt(t, root)
	dir := d.mkdir("a")
	d.limit(d.ours, dir, 4096)
	testtool.WriteFile(t, "data", dir, "file")
	d.remove(d.ours, dir)
}

// A process that limits and removes a directory is killed before or after each call that
// changes something. Whatever comes next, no number is lost, and none has two directories.
func TestKilledAtEverySystemCall(t *testing.T) {
	n := 1
	for ; ; n++ {
		killed := false
		for _, again := range []bool{true, false} {
			killed = killOnce(t, calltrace.Point{N: n, After: n%2 == 0 == again}, again)
		}
		if !killed || t.Failed() {
			break
		}
	}
	if n < 15 {
		t.Errorf("the scenario has only %d system calls that change something", n)
	}
}

// killOnce kills it, and then has the directory limited again or removed at once.
func killOnce(t *testing.T, at calltrace.Point, again bool) (killed bool) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	testtool.Must(t, err)
	killed, call := calltrace.Process{Args: []string{"-test.run=^TestCrashScenario$"}, Env: []string{crashVar + "=" + root}}.RunUntil(t, at, calltrace.ChangesBelow(root))
	d := diskAt(t, root)
	defer func() {
		if t.Failed() {
			t.Logf("killed %v: %s; limited again: %v; records %v, limits %v", at, call, again, d.records(d.ours), d.limits())
		}
	}()
	for id := range d.limits() {
		if _, err := os.Lstat(filepath.Join(d.ours.Records, strconv.FormatUint(uint64(id), 10))); err != nil {
			t.Errorf("a limit has no record: %v", err)
		}
	}
	stranger := d.mkdir("stranger")
	d.limit(d.other, stranger, 1<<20)
	dir := filepath.Join(d.fs.Root, "a")
	if _, err := os.Lstat(dir); again || err == nil {
		if err != nil {
			d.mkdir("a")
		}
		_, err := os.Lstat(filepath.Join(dir, "file"))
		had := err == nil
		d.limit(d.ours, dir, 4096)
		if mine := d.project(dir); d.limits()[mine] != 4096 || mine == d.project(stranger) {
			t.Errorf("it has project %d, as a stranger %d; limits %v", mine, d.project(stranger), d.limits())
		}
		if _, err := os.Lstat(filepath.Join(dir, "file")); had && errors.Is(err, os.ErrNotExist) {
			t.Error("its file is gone")
		}
	}
	d.remove(d.ours, dir)
	d.wantLimits(map[uint32]int64{d.project(stranger): 1 << 20})
	if left := d.records(d.ours); len(left) > 0 {
		t.Errorf("records %v are left", left)
	}
	return killed
}
