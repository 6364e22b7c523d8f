package persisted

import (
	"context"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/filelock"
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
		locked, err := filelock.Open(dir, unix.LOCK_EX)
		if err != nil {
			return err
		}
		f = locked
		if !settled.CompareAndSwap(false, true) {
			return filelock.Close(locked)
		}
		return nil
	})
	if err == nil {
		return f, nil
	}
	if !settled.CompareAndSwap(false, true) {
		_ = filelock.Close(f)
	}
	return nil, err
}
