package volumetest

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// reporter is the testing.TB of a check: a failure carries the sentence of the
// contract that it breaks, and does not count if the check is waived.
type reporter struct {
	testing.TB
	check  check
	waived *failures // nil: not waived
	// failures counts them, waived or not.
	failures atomic.Int64
	// said are their texts, each of which is printed once.
	said sync.Map
}

// failures are those of a waived check.
type failures struct {
	reason string
	mu     sync.Mutex
	count  int
}

func (f *failures) number() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

func (r *reporter) report(text string) {
	r.Helper()
	r.failures.Add(1)
	text = strings.TrimRight(text, "\n")
	_, again := r.said.LoadOrStore(text, true)
	if r.waived == nil {
		if again { // it has failed the test already
			return
		}
		r.TB.Errorf("%s\ncheck %s: %s", text, r.check.name, r.check.proves)
		return
	}
	r.waived.mu.Lock()
	defer r.waived.mu.Unlock()
	r.waived.count++
	if again {
		return
	}
	r.Logf("waived (%s): %s", r.waived.reason, text)
}

// stop ends the test as failed, or where it is waived the goroutine that [kit.do]
// has started for that: a test that says it was skipped looks as if it had not run.
func (r *reporter) stop() {
	if r.waived == nil {
		r.TB.FailNow()
	}
	runtime.Goexit()
}

func (r *reporter) Error(args ...any) { r.Helper(); r.report(fmt.Sprintln(args...)) }
func (r *reporter) Errorf(format string, args ...any) {
	r.Helper()
	r.report(fmt.Sprintf(format, args...))
}
func (r *reporter) Fatal(args ...any) { r.Helper(); r.report(fmt.Sprintln(args...)); r.stop() }
func (r *reporter) Fatalf(format string, args ...any) {
	r.Helper()
	r.report(fmt.Sprintf(format, args...))
	r.stop()
}
func (r *reporter) Fail()    { r.Helper(); r.report("failed") }
func (r *reporter) FailNow() { r.Helper(); r.report("failed"); r.stop() }

func (r *reporter) failed() bool { return r.failures.Load() > 0 }
