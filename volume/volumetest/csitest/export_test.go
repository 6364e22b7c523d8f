package csitest

import "testing"

// RunWaived runs one check, which the caller must fail.
func RunWaived(t *testing.T, name string, start func(*testing.T, Node) Caller) {
	t.Helper()
	run(t, map[string]func(*check){name: checks()[name]}, start, []string{name})
}
