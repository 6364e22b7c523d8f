//go:build linux

package atomicdir

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The child of TestCrashAtEveryStep gets these.
const (
	crashDirVar  = "PODVOL_ATOMICDIR_CRASH_DIR"
	crashStepVar = "PODVOL_ATOMICDIR_CRASH_STEP"
	crashSetVar  = "PODVOL_ATOMICDIR_CRASH_SET"
)

// crashSets are published one after the other; each adds, changes, keeps and
// removes names.
var crashSets = []map[string]string{
	{"kept": "1", "changed": "1", "nested/a": "1", "goes": "1"},
	{"kept": "1", "changed": "2", "nested/a": "1", "nested/b": "2", "new": "2"},
	{"kept": "1", "changed": "3", "goes": "back"},
}

// TestCrashChild is not a test of its own: it publishes in a process that is
// killed before the given step.
func TestCrashChild(t *testing.T) {
	dir := os.Getenv(crashDirVar)
	if dir == "" {
		return
	}
	at, err := strconv.ParseInt(os.Getenv(crashStepVar), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	set, err := strconv.Atoi(os.Getenv(crashSetVar))
	if err != nil {
		t.Fatal(err)
	}
	var steps atomic.Int64
	p := Publisher{beforeStep: func(string, string) error {
		if steps.Add(1) == at {
			unix.Kill(unix.Getpid(), unix.SIGKILL)
			select {}
		}
		return nil
	}}
	mustPublish(t, &p, dir, text(crashSets[set]))
}

// A process that is killed before any step leaves the old version or the new
// one, and the next publication, of the same set or of another, repairs it.
func TestCrashAtEveryStep(t *testing.T) {
	for set := range crashSets {
		crashed := 0
		for step := 1; ; step++ {
			dir := t.TempDir()
			for _, before := range crashSets[:set] {
				mustPublish(t, new(Publisher), dir, text(before))
			}
			old := visible(t, dir)
			if !crash(t, dir, set, step) {
				wantVisible(t, dir, crashSets[set])
				break
			}
			crashed++
			t.Run(fmt.Sprintf("set %d step %d", set, step), func(t *testing.T) {
				checkAfterCrash(t, dir, old, crashSets[set])
				next := (set + step) % len(crashSets)
				mustPublish(t, new(Publisher), dir, text(crashSets[next]))
				wantVisible(t, dir, crashSets[next])
				other := map[string]string{"kept": "1", "other": "9"}
				mustPublish(t, new(Publisher), dir, text(other))
				wantVisible(t, dir, other)
				wantTidy(t, dir, len(other))
			})
		}
		if crashed < 10 {
			t.Errorf("set %d: only %d steps", set, crashed)
		}
	}
}

// crash reports whether the child was killed; it was not if it had fewer steps.
func crash(t *testing.T, dir string, set, step int) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestCrashChild$")
	cmd.Env = append(os.Environ(), crashDirVar+"="+dir, crashStepVar+"="+strconv.Itoa(step), crashSetVar+"="+strconv.Itoa(set))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != -1 {
		t.Fatalf("the child failed otherwise: %v\n%s", err, out)
	}
	return true
}

// checkAfterCrash: through ..data there is exactly the old or the new version.
// The visible links that are there lead into it; names of which a link was
// removed or not yet made may be missing. A first publication may have links
// that do not lead anywhere yet.
func checkAfterCrash(t *testing.T, dir string, old, set map[string]string) {
	t.Helper()
	data := map[string]string{}
	root, err := filepath.EvalSymlinks(filepath.Join(dir, "..data"))
	if err == nil {
		data = visible(t, root)
	} else if !errors.Is(err, fs.ErrNotExist) || len(old) > 0 {
		t.Fatal(err)
	}
	if !maps.Equal(data, old) && !maps.Equal(data, set) {
		t.Errorf("..data is neither version: %v", cmp.Diff(old, data))
	}
	if len(old) == 0 {
		return
	}
	for name, got := range visible(t, dir) { // fails on a dangling link
		if want, ok := data[name]; !ok || got != want {
			t.Errorf("%s shows %q, ..data has %q", name, got, want)
		}
	}
}

// wantTidy: the layout of a current and a previous version, and nothing else.
func wantTidy(t *testing.T, dir string, links int) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if want := links + len(versions(t, dir)) + 1; len(entries) != want || len(versions(t, dir)) > 2 {
		t.Errorf("%d entries, want %d: %v", len(entries), want, entries)
	}
}

// A step that fails leaves the whole old version in sight, or the new one and
// an error that says so; a further attempt succeeds.
func TestFailureAtEveryStep(t *testing.T) {
	injected := errors.New("injected")
	for set := range crashSets {
		failures := 0
		for step := int64(1); ; step++ {
			dir := t.TempDir()
			for _, before := range crashSets[:set] {
				mustPublish(t, new(Publisher), dir, text(before))
			}
			old, oldVersions := visible(t, dir), versions(t, dir)
			var steps atomic.Int64
			p := Publisher{beforeStep: func(string, string) error {
				if steps.Add(1) == step {
					return injected
				}
				return nil
			}}
			_, err := p.Publish(t.Context(), dir, text(crashSets[set]))
			if err == nil {
				break
			}
			failures++
			failure, ok := errors.AsType[*Error](err)
			if !ok || !errors.Is(err, injected) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("set %d step %d: err = %v", set, step, err)
			}
			if !failure.Published {
				wantVisible(t, dir, old)
				if diff := cmp.Diff(oldVersions, versions(t, dir)); diff != "" {
					t.Errorf("set %d step %d: versions (-before +after):\n%s", set, step, diff)
				}
			}
			mustPublish(t, &p, dir, text(crashSets[set]))
			wantVisible(t, dir, crashSets[set])
		}
		if failures < 10 {
			t.Errorf("set %d: only %d steps", set, failures)
		}
	}
}
