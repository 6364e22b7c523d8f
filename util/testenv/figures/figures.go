// Package figures is for tests that measure: each reports what it measured as a
// [Row] beside a peer or a limit, or as a [Curve].
//
// A figure depends on the machine and on what else it does, so tests only report
// what they measure unless they are told to hold it against its limit:
//
//	PODVOL_ASSERT_FIGURES=1 go test ./mount/host -run 'Figures|Ratios' -v -p 1
//
// A larger number loosens every limit by that factor, for a busy machine. One
// command runs all such tests and writes the page on performance:
//
//	go run ./util/testenv/figures/page
//
// A test that is to be on that page has Figures or Ratios in its name. It measures
// both sides in one run, by [InTurn] or as it does, on [EachFileSystem] where the
// disk matters. Like every package below util, this one carries no promise of
// compatibility.
package figures

import (
	"os"
	"strconv"
	"testing"
)

const (
	// AssertVar is the environment variable with the factor.
	AssertVar = "PODVOL_ASSERT_FIGURES"
	// RecordVar is the environment variable with the absolute path of a file to
	// which records are appended.
	RecordVar = "PODVOL_RECORD_FIGURES"
)

// Slack returns the factor by which limits are loosened, and whether figures
// are to be asserted at all: measurements take their full size then. A factor
// below 1 ends the test. Where figures are recorded, the factor is so large that
// only what is recorded tells what is beyond its limit.
func Slack(t testing.TB) (slack float64, asserted bool) {
	t.Helper()
	if Recording() {
		return 1e9, true
	}
	text := os.Getenv(AssertVar)
	if text == "" {
		return 1, false
	}
	slack, err := strconv.ParseFloat(text, 64)
	if err != nil || slack < 1 {
		t.Fatalf("%s must be a factor of at least 1, is %q", AssertVar, text)
	}
	return slack, true
}

// Recording says whether figures are recorded for the page.
func Recording() bool { return os.Getenv(RecordVar) != "" }

// InMemory has the rest of the test make its directories where syncing takes no time, if the
// system has such a place. They go with the test.
func InMemory(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "figures")
	if err != nil {
		t.Logf("directories are on the disk, whose time counts: %v", err)
		return
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	t.Setenv("TMPDIR", dir)
}
