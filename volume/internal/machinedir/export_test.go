package machinedir

import "golang.org/x/sys/unix"

// AsOldKernel has a lock look from where it would on a kernel that does not number mounts for good.
func (l *Lock) AsOldKernel() {
	l.view = func() (string, error) {
		return viewBy(func(dirfd int, path string, flags, mask int, st *unix.Statx_t) error {
			return unix.Statx(dirfd, path, flags, mask&^unix.STATX_MNT_ID_UNIQUE, st)
		})
	}
}
