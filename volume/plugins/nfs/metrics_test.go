package nfs

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/meter"
)

func TestWhyAShareCannotBeMeasured(t *testing.T) {
	m := fakemount.New()
	t.Cleanup(func() { m.Close() })
	for errno, cause := range map[error]mount.Cause{
		unix.ESTALE: mount.ErrStaleHandle, unix.ETIMEDOUT: mount.ErrTimedOut, context.DeadlineExceeded: mount.ErrTimedOut, unix.EACCES: mount.ErrAccessDenied,
	} {
		err := explain(m, "/pods/v", &meter.Error{Path: "/pods/v", Err: errno})
		e, ok := errors.AsType[*mount.Error](err)
		if !ok || e.Cause != cause || e.Advice() == "" || !errors.As(err, new(*meter.Error)) {
			t.Errorf("%v: %v, want %v with advice", errno, err, cause)
		}
	}
	for _, other := range []error{nil, unix.EIO, mount.ErrNotMounted} {
		if err := explain(m, "/pods/v", other); err != other {
			t.Errorf("%v has become %v", other, err)
		}
	}
}
