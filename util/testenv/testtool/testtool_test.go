package testtool_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/testtool"
)

// recorder is a test that only notes its end.
type recorder struct {
	testing.TB
	skipped, failed string
}

func (r *recorder) Helper() {}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = strings.Join(strings.Fields(format), " ")
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = format
	runtime.Goexit()
}

func need(t *testing.T, programs ...string) *recorder {
	t.Helper()
	r, done := &recorder{TB: t}, make(chan struct{})
	go func() {
		defer close(done)
		testtool.Need(r, programs...)
	}()
	<-done
	return r
}

func TestNeed(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if r := need(t, "mkfs.xfs"); r.skipped == "" || r.failed != "" {
		t.Errorf("without the program: %+v", r)
	}
	if err := os.WriteFile(filepath.Join(dir, "mkfs.xfs"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := need(t, "mkfs.xfs"); r.skipped != "" || r.failed != "" {
		t.Errorf("with the program: %+v", r)
	}
	if r := need(t, "mkfs.xfs", "mkfs.btrfs"); r.skipped == "" {
		t.Errorf("with one of two: %+v", r)
	}
	if r := need(t, "mkfs.nobody"); r.failed == "" {
		t.Errorf("a program of no known package: %+v", r)
	}
}
