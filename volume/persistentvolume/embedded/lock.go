package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// BusyError says that another process has the claims and volumes of this
// machine.
type BusyError struct {
	Dir string
	// Holder describes it by its [Config.Manager], "process 4711 (podvol)"; empty if
	// nobody knows.
	Holder string
	// Waited is how long.
	Waited time.Duration
	Err    error
}

func (e *BusyError) Error() string {
	holder := e.Holder
	if holder == "" {
		holder = "another process"
	}
	return fmt.Sprintf("the claims and volumes in %s are in use by %s, for longer than %v: wait for it to end, or stop it; or choose another root directory",
		e.Dir, holder, e.Waited)
}

// Unwrap returns why the wait ended.
func (e *BusyError) Unwrap() error { return e.Err }

const (
	defaultLockTimeout = 10 * time.Second
	holderFile         = "holder"
)

// openRecords opens the records, with what an earlier version has bound.
func openRecords(ctx context.Context, store *objects.Store, config Config) (*persistentvolume.RecordedObjects, error) {
	records, err := persistentvolume.OpenRecords(ctx, store, config.Dir)
	if err != nil || config.Ledger == "" {
		return records, err
	}
	if err := records.ImportLedger(ctx, config.Ledger); err != nil {
		return nil, errors.Join(err, records.Close())
	}
	return records, nil
}

// openLocked opens the records, waiting for who has them no longer than it may.
func openLocked(ctx context.Context, store *objects.Store, manager string, config Config) (*persistentvolume.RecordedObjects, error) {
	patience := config.LockTimeout
	if patience <= 0 {
		patience = defaultLockTimeout
	}
	busy := &BusyError{Dir: config.Dir, Waited: patience}
	waiting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(patience, func() { cancel(busy) })
	defer timer.Stop()
	records, err := openRecords(waiting, store, config)
	path := filepath.Join(config.Dir, holderFile)
	switch {
	case err == nil:
		// That it cannot be written costs others no more than a name.
		_ = os.WriteFile(path, fmt.Appendf(nil, "process %d (%s)\n", os.Getpid(), manager), 0o600)
		return records, nil
	case errors.Is(err, busy) && ctx.Err() == nil:
		holder, _ := os.ReadFile(path)
		busy.Holder = strings.TrimSpace(string(holder))
		busy.Err = context.DeadlineExceeded
		return nil, busy
	}
	return nil, err
}
