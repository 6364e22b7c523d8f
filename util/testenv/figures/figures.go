// Package figures says whether measurements are asserted. A figure depends on
// the machine and on what else it does, so tests only report what they measure
// unless they are told to hold it against its limit:
//
//	PODVOL_ASSERT_FIGURES=1 go test ./mount -run 'Figures|Ratios' -v -p 1
//
// A larger number loosens every limit by that factor, for a busy machine. Like
// every package below util, it carries no promise of compatibility.
package figures

import (
	"os"
	"strconv"
	"testing"
)

// AssertVar is the environment variable with the factor.
const AssertVar = "PODVOL_ASSERT_FIGURES"

// Slack returns the factor by which limits are loosened, and whether figures
// are to be asserted at all. A factor below 1 ends the test.
func Slack(t testing.TB) (slack float64, asserted bool) {
	t.Helper()
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
