package nfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
)

// ServerDownError says that a mount was not even tried, since those before it
// from the same server had no answer; see [BreakerConfig]. Nothing was done. It
// matches [mount.ErrTimedOut] and the cause of the last of those.
type ServerDownError struct {
	// Server is the server's name or address, and after it the mount options that
	// lead to another of its services, if there are any.
	Server string
	// Since is when the first of the mounts began that had no answer, Failures how
	// many there are.
	Since    time.Time
	Failures int
	// Next is when the server is tried again, by the first mount from it that is
	// wanted then. A time that has passed means that this is under way.
	Next time.Time
	// Last is what the last of the mounts failed with, and Cause its cause. It
	// names no volume, since it was another pod's.
	Last  error
	Cause mount.Cause
}

var _ volume.RetryAtError = (*ServerDownError)(nil)

// Error stays the same as long as the server is down for the same cause, however
// often it is tried, so that events and rows of output need not be repeated.
func (e *ServerDownError) Error() string {
	text := fmt.Sprintf("NFS server %s has not answered since %s, so this mount was not tried", e.Server, e.Since.UTC().Format(time.RFC3339))
	if e.Cause != "" && e.Cause != mount.ErrTimedOut {
		text += fmt.Sprintf(" (the last one that was: %v)", e.Cause)
	}
	return text + "\n" + e.Advice()
}

// Advice tells the node's owner what to do.
func (e *ServerDownError) Advice() string {
	return "See whether the server runs, and whether this node reaches it: its address, the route, and what a firewall does to its ports. " +
		"It is tried again by itself, and the volume is mounted once it answers."
}

// RetryAt is Next.
func (e *ServerDownError) RetryAt() time.Time { return e.Next }

// Unwrap returns [mount.ErrTimedOut], and Cause where that is another.
func (e *ServerDownError) Unwrap() []error {
	if e.Cause == "" || e.Cause == mount.ErrTimedOut {
		return []error{mount.ErrTimedOut}
	}
	return []error{mount.ErrTimedOut, e.Cause}
}

func (c *circuit) downError(server endpoint) *ServerDownError {
	cause, last := reasonOf(c.last)
	return &ServerDownError{Server: server.String(), Since: c.since, Failures: c.failures, Next: c.retryAt, Last: last, Cause: cause}
}

// reasonOf is the reason of a failed mount, without whose mount it was.
func reasonOf(err error) (cause mount.Cause, reason error) {
	e, ok := errors.AsType[*mount.Error](err)
	if !ok {
		return mount.ErrTimedOut, err
	}
	if e.Err == nil || e.Err == error(e.Cause) {
		return e.Cause, errors.New("nothing more is known")
	}
	return e.Cause, e.Err
}

// leastSilence is how long a server must have been silent before a deadline ends
// the mount for that to mean anything: TCP repeats a lost packet after one second
// and after two more.
const leastSilence = 3 * time.Second

// judge tells what the end of a mount says of its server. Whether a name could
// not be resolved in time or the server behind it was silent makes no difference.
func judge(err error, took time.Duration) verdict {
	if err == nil {
		return answered
	}
	e, ok := errors.AsType[*mount.Error](err)
	if !ok {
		return saysNothing // it did not come to a mount
	}
	switch e.Cause {
	case mount.ErrAccessDenied, mount.ErrNoSuchExport, mount.ErrVersionUnsupported, mount.ErrStaleHandle:
		return answered
	case mount.ErrConnectionRefused, mount.ErrNameResolution:
		return refused
	case mount.ErrTimedOut:
		if abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err); ok && !abandoned.Started && !abandoned.Earlier {
			return saysNothing
		}
		if isCut(err) && took < leastSilence {
			return saysNothing
		}
		return silent
	}
	return saysNothing
}

// isCut tells a mount that was ended by a deadline, rather than by what the
// network said.
func isCut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}
