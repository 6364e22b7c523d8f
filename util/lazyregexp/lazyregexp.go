// Package lazyregexp compiles regular expressions when they are first used: a program that links
// a dozen plugins and asks one question starts without the patterns of all of them.
//
// Like every package below util, it carries no promise of compatibility.
package lazyregexp

import (
	"regexp"
	"sync"
)

// New returns a function that compiles the pattern when it is first called, and returns the same
// expression from then on. It panics if the pattern cannot be compiled. It is safe for concurrent
// use.
func New(pattern string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}
