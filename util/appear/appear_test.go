//go:build linux

package appear

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"
)

// begin returns the paths that are told of, until the test ends.
func begin(t *testing.T, w *Watch, mounts <-chan struct{}) <-chan string {
	t.Helper()
	told, ended := make(chan string, 1000), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	before := current(w)
	go func() {
		defer close(ended)
		w.Run(ctx, mounts, func(path string) { told <- path })
	}()
	for { // until Run has begun, nothing is awaited
		if current(w) != before {
			break
		}
		runtime.Gosched()
	}
	t.Cleanup(func() { cancel(); <-ended })
	return told
}

func current(w *Watch) *run {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.run
}

func expect(t *testing.T, told <-chan string, path string) {
	t.Helper()
	select {
	case got := <-told:
		if got != path {
			t.Fatalf("told of %s, want %s", got, path)
		}
	case <-time.After(time.Minute):
		t.Fatalf("not told of %s", path)
	}
}

func kernelOf(w *Watch) *kernel {
	r := current(w)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kernel
}

// watches waits until the kernel watches a directory for a path.
func watches(t *testing.T, w *Watch, path, name string) {
	t.Helper()
	for late := time.After(time.Minute); ; {
		kernel := kernelOf(w)
		kernel.mu.Lock()
		is := kernel.entries[path].name == name
		kernel.mu.Unlock()
		if is {
			return
		}
		select {
		case <-late:
			t.Fatalf("%s is not watched for in %s", name, path)
		default:
			runtime.Gosched()
		}
	}
}

func TestAPathAppearsStepByStep(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "file")
	w := new(Watch)
	told := begin(t, w, nil)
	w.Await(path)
	watches(t, w, path, "a")
	for i := range 1000 { // what else happens in the directory
		if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	watches(t, w, path, "b")
	if err := os.Mkdir(filepath.Join(dir, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	watches(t, w, path, "file")
	if len(told) > 0 {
		t.Fatalf("told of %s", <-told)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, told, path)
}

func TestAllAtOnceAndByRenaming(t *testing.T) {
	dir := t.TempDir()
	one, other := filepath.Join(dir, "all", "at", "once"), filepath.Join(dir, "all", "other")
	w := new(Watch)
	told := begin(t, w, nil)
	w.Await(one)
	watches(t, w, one, "all")
	if err := os.MkdirAll(one, 0o700); err != nil {
		t.Fatal(err)
	}
	expect(t, told, one)
	w.Await(other)
	watches(t, w, other, "other")
	if err := os.Rename(one, other); err != nil {
		t.Fatal(err)
	}
	expect(t, told, other)
}

// What is there already is told of, and told again only where it is awaited again.
func TestWhatIsThere(t *testing.T) {
	path := t.TempDir() + "/./"
	w := new(Watch)
	told := begin(t, w, nil)
	w.Await(path)
	expect(t, told, path)
	if len(told) > 0 {
		t.Error("told twice")
	}
	w.Await(path)
	expect(t, told, path)
}

// A mount shows what no directory tells of.
func TestAfterAChangeOfTheMountTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	w, mounts := new(Watch), make(chan struct{})
	told := begin(t, w, mounts)
	w.Await(path)
	watches(t, w, path, "file")
	kernelOf(w).forget(path)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mounts <- struct{}{}
	expect(t, told, path)
}

func TestOnlySoManyPaths(t *testing.T) {
	dir := t.TempDir()
	w := new(Watch)
	begin(t, w, nil)
	for i := range 10 * maxPaths {
		w.Await(filepath.Join(dir, strconv.Itoa(i)))
	}
	r := current(w)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.paths) != maxPaths {
		t.Errorf("%d paths are awaited", len(r.paths))
	}
}

// Before and after Run nothing is awaited, and nothing is left of it.
func TestWithoutRun(t *testing.T) {
	w := new(Watch)
	w.Await("/missing")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.Run(ctx, nil, nil)
	w.Await("/missing")
	if w.run != nil {
		t.Error("it goes on after its end")
	}
}

// What is awaited is the last Run's, and an earlier one ends by itself.
func TestTwoRuns(t *testing.T) {
	dir := t.TempDir()
	early, late := filepath.Join(dir, "early"), filepath.Join(dir, "late")
	w := new(Watch)
	first := begin(t, w, nil)
	w.Await(early)
	watches(t, w, early, "early")
	t.Run("second", func(t *testing.T) {
		second := begin(t, w, nil)
		w.Await(late)
		watches(t, w, late, "late")
		for _, path := range []string{early, late} {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		expect(t, first, early)
		expect(t, second, late)
	})
	if w.run != nil {
		t.Error("the second goes on after its end")
	}
}
