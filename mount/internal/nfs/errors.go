package nfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// OptionError is a mount option that cannot be carried out.
type OptionError struct {
	// Option is the option's name, without its value.
	Option string
	// Reason says why, in a few words that do not repeat the value.
	Reason string
}

func (e *OptionError) Error() string { return fmt.Sprintf("mount option %q: %s", e.Option, e.Reason) }

// SourceError is a source that is not server:/path.
type SourceError struct{ Source, Reason string }

func (e *SourceError) Error() string { return fmt.Sprintf("NFS source %q: %s", e.Source, e.Reason) }

// ResolveError is a server whose name has no address that can be used.
type ResolveError struct {
	Host string
	Err  error
}

func (e *ResolveError) Error() string { return fmt.Sprintf("resolve %s: %v", e.Host, e.Err) }
func (e *ResolveError) Unwrap() error { return e.Err }

// ReachError is a service that cannot be reached.
type ReachError struct {
	// Service is the service asked, with its address: "NFS at 10.0.0.1:2049".
	Service string
	Err     error
}

func (e *ReachError) Error() string { return fmt.Sprintf("%s: %v", e.Service, e.Err) }
func (e *ReachError) Unwrap() error { return e.Err }

// Timeout reports whether it did not answer, rather than refuse.
func (e *ReachError) Timeout() bool {
	if netErr, ok := errors.AsType[net.Error](e.Err); ok && netErr.Timeout() {
		return true
	}
	for _, silent := range []error{os.ErrDeadlineExceeded, context.DeadlineExceeded, unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN} {
		if errors.Is(e.Err, silent) {
			return true
		}
	}
	return false
}

// VersionError is a server, or a kernel here, that does not speak a version.
type VersionError struct {
	// Asked is what the options ask for, or empty.
	Asked string
	Err   error
}

func (e *VersionError) Error() string {
	if e.Asked == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("version %s was asked for: %v", e.Asked, e.Err)
}

func (e *VersionError) Unwrap() error { return e.Err }

// StatdError says that NFSv3 could not take locks: no rpc.statd answers here.
type StatdError struct{ Err error }

func (e *StatdError) Error() string {
	return fmt.Sprintf("NFSv3 locks need rpc.statd on this node, which does not answer: %v", e.Err)
}

func (e *StatdError) Unwrap() error { return e.Err }

// FinalError wraps an error of an attempt that no other version or address can
// change, such as a misspelt option. Callers of [Client.Negotiate] return it.
type FinalError struct{ Err error }

func (e *FinalError) Error() string { return e.Err.Error() }
func (e *FinalError) Unwrap() error { return e.Err }

// Failure is a negotiation that failed.
type Failure struct {
	// Err is the error that tells most; Version the version it came from, or
	// zero if it concerns all.
	Err     error
	Version Version
	// Refused are the versions tried before, with why each was not to be had.
	Refused []Refusal
}

// Refusal is a version that was tried in vain.
type Refusal struct {
	Version Version
	Err     error
}

func (r Refusal) String() string { return fmt.Sprintf("%s: %v", r.Version, r.Err) }

func (e *Failure) Error() string {
	var b strings.Builder
	if e.Version != (Version{}) {
		fmt.Fprintf(&b, "NFSv%s: ", e.Version)
	}
	b.WriteString(e.Err.Error())
	for _, r := range e.Refused {
		fmt.Fprintf(&b, "; NFSv%s: %v", r.Version, r.Err)
	}
	return b.String()
}

// Unwrap returns the error that tells most; the other versions' are in Refused.
func (e *Failure) Unwrap() error { return e.Err }
