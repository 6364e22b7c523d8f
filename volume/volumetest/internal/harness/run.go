package harness

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"testing"
	"testing/synctest"

	"github.com/podvol/podvol/volume/volumetest/internal/memdir"
)

// TempDir is that of testing.TB, in memory where there is any.
func (t *T) TempDir() string {
	t.Helper()
	if t.memory == "" {
		return t.TB.TempDir()
	}
	dir, err := os.MkdirTemp(t.memory, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { memdir.Remove(t, dir) })
	return dir
}

// Catch turns a panic of the plugin into a failure of the check. It is deferred.
func (t *T) Catch() {
	if p := recover(); p != nil {
		t.Errorf("the plugin panicked: %v\n%s", p, debug.Stack())
	}
}

// Do runs a check, or a part of it, and reports whether it came to its end. One
// that is waived gets a goroutine, which it can end without an end of the test.
func (t *T) Do(f func()) (complete bool) {
	run := func() {
		defer t.Catch()
		f()
		complete = true
	}
	if t.waived == nil {
		run()
		return complete
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		run()
	}()
	<-ended
	return complete
}

// ErrPanicked is the error that [T.Async] sends where the function did not return.
var ErrPanicked = errors.New("the plugin panicked")

// Async runs f in a goroutine of its own. It sends f's error also where f
// panics, which would end the process and name no check, or ends its goroutine.
func (t *T) Async(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		err := ErrPanicked
		defer func() { done <- err }()
		defer t.Catch()
		err = f()
	}()
	return done
}

// Bubble runs f with virtual time: what hangs for an hour takes no time at
// all. See [testing/synctest]. A goroutine that the plugin leaves for ever is a
// failure.
func (t *T) Bubble(f func(*T)) {
	t.Helper()
	var number string
	complete := false
	defer func() {
		// Panics of f itself do not come here.
		if p := recover(); p != nil {
			t.Errorf("the plugin left goroutines that wait for ever: %v\n%s", p, stacksOf(number))
		}
	}()
	synctest.Test(t.test, func(test *testing.T) {
		number = currentBubble()
		inside := New(test, t.sentence, t.memory, t.waived)
		complete = inside.Do(func() { f(inside) })
	})
	if t.waived != nil && !complete {
		t.stop() // synctest does so for what is not waived
	}
}

// Explain says after a failure in which situation it was. It is deferred.
func (t *T) Explain(format string, args ...any) {
	if t.Failed() {
		// After a Fatal the caller is the runtime: there is no place to name.
		fmt.Fprintf(t.Output(), "this was: "+format+"\n", args...)
	}
}
