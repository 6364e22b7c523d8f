// Package noleak fails tests that leave goroutines behind, as go.uber.org/goleak
// does, but gives the goroutines a minute to end: goleak's half a second is not enough
// on a busy machine, where a whole package then fails after all its tests have passed.
//
// It is for tests. Like every package below util, it carries no promise of
// compatibility.
package noleak

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long goroutines that are about to end may take.
const patience = time.Minute

// Main runs the tests of a package and ends the process, with an error if they have
// all passed and goroutines stay.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		if err := Find(options...); err != nil {
			fmt.Fprintf(os.Stderr, "goleak: Errors on successful test run: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// Find returns an error that shows the goroutines that stay.
//
// The runtime's own goroutines for finalizers and cleanups do not count: they run
// whenever memory is collected.
func Find(options ...goleak.Option) error { return find(patience, options...) }

func find(patience time.Duration, options ...goleak.Option) error {
	options = append(options, goleak.IgnoreAnyFunction("runtime.runFinalizers"), goleak.IgnoreAnyFunction("runtime.runCleanups"))
	for deadline := time.Now().Add(patience); ; {
		err := goleak.Find(options...)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}
