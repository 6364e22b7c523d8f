// Package eintr repeats system calls that a signal interrupted.
//
// The Go runtime sends itself signals, and some file systems (FUSE, NFS) answer
// them with EINTR although the handlers ask for a restart. The standard library
// repeats such calls; users of golang.org/x/sys/unix have to do it too.
//
// Like every package below util, it carries no promise of compatibility.
package eintr

import (
	"errors"
	"syscall"
)

// Do calls f until it returns something else than EINTR. It must not be used
// for close(2), which has always closed.
func Do(f func() error) error {
	for {
		if err := f(); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// Get is [Do] for calls with a result.
func Get[T any](f func() (T, error)) (T, error) {
	for {
		if v, err := f(); !errors.Is(err, syscall.EINTR) {
			return v, err
		}
	}
}
