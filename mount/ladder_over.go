package mount

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// overEvery is how often a ladder looks whether a call that hangs has done its
// work. The kernel does not tell when a file system is gone.
const overEvery = time.Second

// errOver says that the file system is gone while the call still hangs.
var errOver = errors.New("the file system is gone")

// watch returns a context that ends with errOver when a mount and its file
// system are gone although the call that unmounts hangs: NFSv4 says good-bye to
// its server at the very end, and waits for the answer for minutes.
func (l *ladder) watch(ctx context.Context) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	go func() {
		ticker := time.NewTicker(overEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-watched.Done():
				return
			}
			if l.on.isOver() {
				cancel(errOver)
				return
			}
		}
	}()
	return watched, func() { cancel(nil) }
}

// isOver implements [unmounter] for NFS, whose file systems have a directory
// below /sys/class/bdi as long as they live.
func (u *hostUnmount) isOver() bool {
	found := u.found.Load()
	if found == nil || family(found.FSType) != "nfs" {
		return false
	}
	now, ok, err := sightingAt(u.m.table, found.Target)
	if err != nil || ok && now.isSame(*found) {
		return false
	}
	supers := hostSuperblocks()
	_, err = inodeOf(filepath.Join(supers.bdi, deviceNumber(found.Device)))
	if !errors.Is(err, unix.ENOENT) {
		return false
	}
	_, err = inodeOf(supers.bdi) // it may be sysfs that is gone
	return err == nil
}

// isOver implements [unmounter].
func (u *fakeUnmount) isOver() bool {
	u.fake.mu.Lock()
	defer u.fake.mu.Unlock()
	v := u.victim
	return v != nil && v.gone && family(v.super.fstype) == "nfs" && v.super.mounts == 0 && v.super.users == 0
}
