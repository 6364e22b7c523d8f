// Package rerun builds the arguments by which a test binary runs one of its
// own tests again elsewhere: in a namespace, in a virtual machine. Like every
// package below util, it carries no promise of compatibility.
package rerun

import (
	"context"
	"regexp"
	"strings"
	"testing"
	"time"
)

// Args selects exactly the calling test, and passes on how it was asked to
// run. Flags that make the binary write files (profiles, coverage, the test
// log) are not passed on: they would overwrite the caller's own.
func Args(t *testing.T) []string {
	elements := strings.Split(t.Name(), "/")
	for i, e := range elements {
		elements[i] = "^" + regexp.QuoteMeta(e) + "$"
	}
	args := []string{"-test.run=" + strings.Join(elements, "/"), "-test.count=1"}
	if testing.Verbose() {
		args = append(args, "-test.v=true")
	}
	if testing.Short() {
		args = append(args, "-test.short=true")
	}
	if deadline, ok := t.Deadline(); ok {
		args = append(args, "-test.timeout="+time.Until(deadline).String())
	}
	return args
}

// Context ends a little before the test's deadline, so that a hung child is
// reported as this test's failure.
func Context(t *testing.T) (context.Context, context.CancelFunc) {
	deadline, ok := t.Deadline()
	if !ok {
		return context.WithCancel(t.Context())
	}
	return context.WithDeadline(t.Context(), deadline.Add(-time.Until(deadline)/20))
}
