package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/persisted"
)

const (
	defaultLockTimeout = 10 * time.Second
	silentWait         = time.Second
	holderFile         = "holder"
)

// openLocked opens the records, and waits for another process that has them no
// longer than it may.
func openLocked(ctx context.Context, store *objects.Store, manager string, config Config) (*persisted.Store, error) {
	patience := config.LockTimeout
	if patience <= 0 {
		patience = defaultLockTimeout
	}
	busy := &volume.Failure{Cause: ErrBusy, Subject: config.Dir, Err: context.DeadlineExceeded}
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(patience, func() { cancel(busy) })
	defer timer.Stop()
	path := filepath.Join(config.Dir, holderFile)
	stopTelling := later(silentWait, func() {
		if config.Logger == nil {
			return
		}
		config.Logger.WarnContext(ctx, "waiting for the claims and volumes, which another process has", "dir", config.Dir, "holder", holder(path), "atMost", patience)
	})
	records, err := persisted.Open(waiting, store, config.Dir)
	stopTelling()
	switch {
	case err == nil:
		// That it cannot be written costs others no more than a name.
		_ = os.WriteFile(path, fmt.Appendf(nil, "process %d (%s)\n", os.Getpid(), manager), 0o600)
		return records, nil
	case errors.Is(err, busy) && ctx.Err() == nil:
		busy.What = fmt.Sprintf("the claims and volumes in %s are in use by %s, for longer than %v", config.Dir, holder(path), patience)
		busy.Next = "wait for it to end, or stop it; or choose another root directory"
		return nil, busy
	}
	return nil, err
}

// holder is the process that has written its name.
func holder(path string) string {
	text, _ := os.ReadFile(path)
	return cmp.Or(strings.TrimSpace(string(text)), "another process")
}

// later calls f after a pause, unless stop is called before. f has ended when stop returns.
func later(pause time.Duration, f func()) (stop func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(pause, func() {
		defer close(done)
		f()
	})
	return func() {
		if !timer.Stop() {
			<-done
		}
	}
}
