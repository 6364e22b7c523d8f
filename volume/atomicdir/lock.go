//go:build linux || darwin || freebsd || netbsd || openbsd

package atomicdir

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// lock keeps the publications of all processes into the directory apart, by a lock of
// flock(2) that ends with the process. It does not wait: the error is [ErrBusy] while another
// one has the lock. A file system that has no such locks is used without.
func (t *target) lock(flock func(fd, how int) error) (unlock func(), err error) {
	unlock = func() {}
	err = eintr.Do(func() error { return flock(t.fd, unix.LOCK_EX|unix.LOCK_NB) })
	switch {
	case err == nil:
		unlock = func() {
			// A child that is just being started has a copy of fd, which keeps the lock.
			_ = eintr.Do(func() error { return flock(t.fd, unix.LOCK_UN) })
		}
	case errors.Is(err, unix.EWOULDBLOCK):
		err = t.failed("lock", "", ErrBusy)
	case errors.Is(err, errors.ErrUnsupported) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOLCK) || errors.Is(err, unix.EINVAL):
		err = nil
	default:
		err = t.failed("lock", "", err)
	}
	if err == nil {
		t.changed, err = t.lastChange() // as it is from now on
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}
