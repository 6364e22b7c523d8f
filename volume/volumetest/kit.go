package volumetest

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
)

// kit is what a check works with. It is a testing.TB whose failures carry the
// check's sentence.
type kit struct {
	*reporter
	test   *testing.T
	runner runner
	on     environment
}

// catch turns a panic of the plugin into a failure of the check.
func (k *kit) catch() {
	if p := recover(); p != nil {
		k.Errorf("the plugin panicked: %v\n%s", p, debug.Stack())
	}
}

// errPanicked is what [kit.async] sends for what did not return.
var errPanicked = errors.New("the plugin panicked")

// async runs f in a goroutine of its own. It sends f's error also where f
// panics, which would end the process and name no check, or ends its goroutine.
func (k *kit) async(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() {
		err := errPanicked
		defer func() { done <- err }()
		defer k.catch()
		err = f()
	}()
	return done
}

// bubble runs f with virtual time: what hangs for an hour takes no time at
// all. See [testing/synctest]. A goroutine that the plugin leaves for ever is a
// failure.
func (k *kit) bubble(f func(*kit)) {
	k.Helper()
	var number string
	defer func() {
		// Panics of f itself do not come here.
		if p := recover(); p != nil {
			k.Errorf("the plugin left goroutines that wait for ever: %v\n%s", p, stacksOf(number))
		}
	}()
	synctest.Test(k.test, func(t *testing.T) {
		number = currentBubble()
		inner := k.runner.newKit(t, k.on, k.check, k.waived)
		defer inner.catch()
		f(inner)
	})
}

// explain says after a failure in which situation it was. It is deferred.
func (k *kit) explain(format string, args ...any) {
	if k.failed() {
		// After a Fatal the caller is the runtime: there is no place to name.
		fmt.Fprintf(k.Output(), "this was: "+format+"\n", args...)
	}
}

func stacksOf(bubble string) string {
	var all strings.Builder
	for _, stack := range goroutines(bubble) {
		fmt.Fprintf(&all, "%s\n\n", stack)
	}
	return all.String()
}
