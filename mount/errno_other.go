//go:build !linux

package mount

import "syscall"

// What an errno means to a mount is known of Linux alone.

func causeOfErrno(syscall.Errno) Cause { return ErrUnknown }

func causeOfMountErrno(Request, syscall.Errno) Cause { return ErrUnknown }
