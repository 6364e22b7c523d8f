package persisted

import (
	"context"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/eintr"
)

// lockDir locks a directory against every other opener, in this process too,
// until the file is closed. It waits no longer than ctx; callers that share
// waiting cost one thread for each directory, however often they give up.
func lockDir(ctx context.Context, waiting *blockingcall.Group[string], dir string) (*os.File, error) {
	var f *os.File
	// Set by whichever comes first, the lock or the end of the wait: the second
	// closes the file, and nothing else does.
	var settled atomic.Bool
	err := waiting.Do(ctx, dir, func() error {
		locked, err := openLocked(dir)
		if err != nil {
			return err
		}
		f = locked
		if !settled.CompareAndSwap(false, true) {
			return unlockDir(locked)
		}
		return nil
	})
	if err == nil {
		return f, nil
	}
	if !settled.CompareAndSwap(false, true) {
		_ = unlockDir(f)
	}
	return nil, err
}

// unlockDir gives the lock up and closes its file. A child that has not yet started its program
// has the file, too, and would keep the lock for that moment.
func unlockDir(f *os.File) error {
	_ = eintr.Do(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) })
	return f.Close()
}

func openLocked(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := eintr.Do(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) }); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}
