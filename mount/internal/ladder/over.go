package ladder

import (
	"context"
	"errors"
	"time"
)

// overEvery is how often a ladder looks whether a call that hangs has done its
// work. The kernel does not tell when a file system is gone.
const overEvery = time.Second

// errOver says that the file system is gone while the call still hangs.
var errOver = errors.New("the file system is gone")

// watch returns a context that ends with errOver when a mount and its file
// system are gone although the call that unmounts hangs: NFSv4 says good-bye to
// its server at the very end, and waits for the answer for minutes.
func (l *Ladder) watch(ctx context.Context) (watched context.Context, stop func()) {
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
			if l.On.IsOver() {
				cancel(errOver)
				return
			}
		}
	}()
	return watched, func() { cancel(nil) }
}
