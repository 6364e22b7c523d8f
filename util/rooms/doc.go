// Package rooms holds the test that keeps the module's packages in order: which
// room may import which, and what the core may pull in from outside. It has no
// code of its own.
package rooms
