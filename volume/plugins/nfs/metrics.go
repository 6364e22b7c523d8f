package nfs

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
)

// GetMetrics returns those of the server's file system. Where the server does
// not answer in time, or no longer knows the directory (its export was removed
// or made anew), the error is a *[mount.Error] of cause [mount.ErrTimedOut] or
// [mount.ErrStaleHandle] with what to do, around the *[meter.Error].
//
// A stale share stays as it is mounted: the pod's containers have it, and a
// mount beneath theirs would not reach them. A set-up that finds it in the mount
// table changes nothing, also after a restart of the agent; a new pod gets a
// new mount with a new handle. The pod itself has to be deleted and made anew.
func (s *share) GetMetrics(ctx context.Context) (*volume.Metrics, error) {
	m := s.Host.GetMounter()
	metrics, err := podmount.Metrics(ctx, m, &s.plugin.meter, s.GetPath())
	return metrics, s.Error("GetMetrics", explain(m, s.GetPath(), err))
}

// explain adds the cause and the advice to what a share answers.
func explain(m mount.Interface, path string, err error) error {
	var cause mount.Cause
	switch {
	case errors.Is(err, unix.ESTALE):
		cause = mount.ErrStaleHandle
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, context.DeadlineExceeded):
		cause = mount.ErrTimedOut
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		cause = mount.ErrAccessDenied
	default:
		return err
	}
	failure := &mount.Error{Op: mount.OpMeasure, Target: path, Cause: cause, Err: err}
	if entry, mounted, tableErr := table.Of(m).At(path); tableErr == nil && mounted {
		failure.Source, failure.FSType = entry.Source, entry.FSType
	}
	return failure
}
