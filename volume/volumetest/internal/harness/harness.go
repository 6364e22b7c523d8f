// Package harness runs the checks of a plugin, so that each thing a plugin can do wrong is
// a failure that names the check: an error, a panic, a goroutine that stays, a
// call that hangs, for which there is virtual time. A check that is waived fails
// without harm to the test.
package harness

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// T is the testing.TB of a check: a failure carries the sentence of the
// contract that it breaks, and does not count if the check is waived.
type T struct {
	testing.TB
	test     *testing.T // the same
	sentence string
	memory   string
	waived   *Waived
	// failures counts them, waived or not.
	failures atomic.Int64
	// said are their texts, each of which is printed once.
	said sync.Map
}

// New returns the T of a check with this name and sentence. Its directories are
// below memory; empty: where those of test are. If waived is not nil, it is told
// of failures instead of the test.
func New(test *testing.T, sentence, memory string, waived *Waived) *T {
	return &T{TB: test, test: test, sentence: sentence, memory: memory, waived: waived}
}

// Waived are the failures of a waived check.
type Waived struct {
	reason string
	mu     sync.Mutex
	count  int
}

// NewWaived returns a Waived without failures, for a reason to print beside them.
func NewWaived(reason string) *Waived { return &Waived{reason: reason} }

// Number returns how many there are; none if nothing is waived.
func (w *Waived) Number() int {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.count
}

func (t *T) report(text string) {
	t.Helper()
	t.failures.Add(1)
	text = strings.TrimRight(text, "\n")
	_, again := t.said.LoadOrStore(text, true)
	if t.waived == nil {
		if again { // it has failed the test already
			return
		}
		t.TB.Errorf("%s\ncheck %s", text, t.sentence)
		return
	}
	t.waived.mu.Lock()
	defer t.waived.mu.Unlock()
	t.waived.count++
	if again {
		return
	}
	t.Logf("waived (%s): %s", t.waived.reason, text)
}

// stop ends the test as failed, or where it is waived the goroutine that [T.Do]
// has started for that: a test that says it was skipped looks as if it had not run.
func (t *T) stop() {
	if t.waived == nil {
		t.TB.FailNow()
	}
	runtime.Goexit()
}

func (t *T) Error(args ...any) { t.Helper(); t.report(fmt.Sprintln(args...)) }
func (t *T) Errorf(format string, args ...any) {
	t.Helper()
	t.report(fmt.Sprintf(format, args...))
}
func (t *T) Fatal(args ...any) { t.Helper(); t.report(fmt.Sprintln(args...)); t.stop() }
func (t *T) Fatalf(format string, args ...any) {
	t.Helper()
	t.report(fmt.Sprintf(format, args...))
	t.stop()
}
func (t *T) Fail()    { t.Helper(); t.report("failed") }
func (t *T) FailNow() { t.Helper(); t.report("failed"); t.stop() }

// Failed reports whether the check has failed, waived or not.
func (t *T) Failed() bool { return t.failures.Load() > 0 }
