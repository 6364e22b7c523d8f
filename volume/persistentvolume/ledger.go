package persistentvolume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/flight"
	"github.com/podvol/podvol/volume"
)

// ledgerVersion is the schema of the ledger's files.
const ledgerVersion = 1

// entry is one binding on disk.
type entry struct {
	SchemaVersion int       `json:"schemaVersion"`
	Volume        string    `json:"volume"`
	Namespace     string    `json:"namespace"`
	Name          string    `json:"name"`
	UID           types.UID `json:"uid"`
	Time          time.Time `json:"time"`
}

func (e entry) isFor(pvc *v1.PersistentVolumeClaim) bool {
	return e.Namespace == pvc.Namespace && e.Name == pvc.Name && e.UID == pvc.UID
}

func (e entry) claim() string { return e.Namespace + "/" + e.Name }

// ledger is the directory of bindings, one file for each volume, open and
// locked.
type ledger struct {
	dir     string
	lock    *os.File
	entries map[string]entry // by volume
}

// openLedger waits for the ledger's lock and reads all bindings. A file that
// cannot be understood is an error: guessing could show data to another claim.
func openLedger(ctx context.Context, dir string) (*ledger, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("ledger of bindings: %w", err)
	}
	lock, err := lockDir(ctx, dir)
	if err != nil {
		return nil, fmt.Errorf("ledger of bindings %s: lock: %w", dir, err)
	}
	l := &ledger{dir: dir, lock: lock, entries: make(map[string]entry)}
	if err := l.load(); err != nil {
		lock.Close()
		return nil, err
	}
	return l, nil
}

func (l *ledger) close() { l.lock.Close() } // which unlocks

// lockDir locks a directory against every other opener, in this process too.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	var group flight.Group[string]
	err = group.Do(ctx, dir, func() error {
		err := eintr.Do(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX) })
		if err == nil && ctx.Err() != nil {
			err = context.Cause(ctx) // nobody waits any more
		}
		if err != nil {
			f.Close()
		}
		return err
	})
	if err != nil {
		if a, ok := errors.AsType[*flight.AbandonedError](err); ok && !a.Started {
			f.Close()
		}
		return nil, err
	}
	return f, nil
}

func (l *ledger) load() error {
	files, err := os.ReadDir(l.dir)
	if err != nil {
		return fmt.Errorf("ledger of bindings: %w", err)
	}
	for _, file := range files {
		name, isEntry := strings.CutSuffix(file.Name(), ".json")
		if !isEntry || durable.IsTemp(file.Name()) {
			continue
		}
		e, err := readEntry(filepath.Join(l.dir, file.Name()))
		if err == nil && e.Volume != name {
			err = fmt.Errorf("it is about the volume %q", e.Volume)
		}
		if err != nil {
			return fmt.Errorf("ledger of bindings: %s: %w; nothing is bound until it is put right, so that no claim is shown another's data",
				filepath.Join(l.dir, file.Name()), err)
		}
		l.entries[e.Volume] = e
	}
	return nil
}

func readEntry(path string) (entry, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return entry{}, err
	}
	var e entry
	if err := json.Unmarshal(data, &e); err != nil {
		return entry{}, err
	}
	if e.SchemaVersion != ledgerVersion {
		return entry{}, fmt.Errorf("its schema version is %d, this program knows %d", e.SchemaVersion, ledgerVersion)
	}
	if e.Name == "" || e.UID == "" {
		return entry{}, errors.New("it names no claim")
	}
	return e, nil
}

// of returns the binding of a claim, this very one.
func (l *ledger) of(pvc *v1.PersistentVolumeClaim) (entry, bool) {
	for _, e := range l.entries {
		if e.isFor(pvc) {
			return e, true
		}
	}
	return entry{}, false
}

// record writes a binding down, durably. An existing one stays.
func (l *ledger) record(volumeName string, pvc *v1.PersistentVolumeClaim) error {
	if e, ok := l.entries[volumeName]; ok {
		if e.isFor(pvc) {
			return nil
		}
		return fmt.Errorf("%w: volume %q is recorded for %s", volume.ErrBoundElsewhere, volumeName, e.claim())
	}
	if err := volume.CheckPathSegment("metadata.name", volumeName); err != nil {
		return err
	}
	e := entry{SchemaVersion: ledgerVersion, Volume: volumeName, Namespace: pvc.Namespace, Name: pvc.Name, UID: pvc.UID, Time: time.Now().UTC()}
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := durable.WriteFile(l.path(volumeName), append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("record that volume %q is bound: %w", volumeName, err)
	}
	l.entries[volumeName] = e
	return nil
}

// withdraw takes a binding back that was recorded and never used.
func (l *ledger) withdraw(volumeName string) error {
	if err := durable.Remove(l.path(volumeName)); err != nil {
		return fmt.Errorf("withdraw the binding of volume %q: %w", volumeName, err)
	}
	delete(l.entries, volumeName)
	return nil
}

func (l *ledger) path(volumeName string) string { return filepath.Join(l.dir, volumeName+".json") }
