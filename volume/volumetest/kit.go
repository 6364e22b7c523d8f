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

// do runs a check, or a part of it, and reports whether it came to its end. One
// that is waived gets a goroutine, which it can end without an end of the test.
func (k *kit) do(f func(*kit)) (complete bool) {
	run := func() {
		defer k.catch()
		f(k)
		complete = true
	}
	if k.waived == nil {
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
	complete := false
	defer func() {
		// Panics of f itself do not come here.
		if p := recover(); p != nil {
			k.Errorf("the plugin left goroutines that wait for ever: %v\n%s", p, stacksOf(number))
		}
	}()
	synctest.Test(k.test, func(t *testing.T) {
		number = currentBubble()
		complete = k.runner.newKit(t, k.on, k.check, k.waived).do(f)
	})
	if k.waived != nil && !complete {
		k.stop() // synctest does so for what is not waived
	}
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
