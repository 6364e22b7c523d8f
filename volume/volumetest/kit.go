package volumetest

import (
	"runtime/debug"
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

// bubble runs f with virtual time: what hangs for an hour takes no time at
// all. See [testing/synctest]. A goroutine that the plugin leaves for ever is a
// failure.
func (k *kit) bubble(f func(*kit)) {
	k.Helper()
	defer func() {
		// Panics of f itself do not come here.
		if p := recover(); p != nil {
			k.Errorf("the plugin left goroutines that wait for ever: %v", p)
		}
	}()
	synctest.Test(k.test, func(t *testing.T) {
		inner := k.runner.newKit(t, k.on, k.check, k.waived)
		defer inner.catch()
		f(inner)
	})
}

// explain says after a failure in which situation it was. It is deferred.
func (k *kit) explain(format string, args ...any) {
	k.Helper()
	if k.failed() {
		k.Logf("this was: "+format, args...)
	}
}
