package persistentvolume

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/flight"
)

// ledgerVersion is the schema of the ledger's files.
const ledgerVersion = 1

// entry is one binding on disk, as versions without records wrote it.
type entry struct {
	SchemaVersion int       `json:"schemaVersion"`
	Volume        string    `json:"volume"`
	Namespace     string    `json:"namespace"`
	Name          string    `json:"name"`
	UID           types.UID `json:"uid"`
	Time          time.Time `json:"time"`
	// ClaimDeleted says that the claim was created and deleted since, and the
	// volume was not.
	ClaimDeleted bool `json:"claimDeleted,omitempty"`
}

func (e entry) claim() ClaimID {
	return ClaimID{types.NamespacedName{Namespace: e.Namespace, Name: e.Name}, e.UID}
}

// ledger is the directory of bindings, one file for each volume, open and
// locked. No claim has two.
type ledger struct {
	dir      string
	lock     *os.File
	byVolume map[string]entry
	byClaim  map[ClaimID]entry
}

// openLedger waits for the ledger's lock and reads all bindings. A file that
// cannot be understood is an error: guessing could show data to another claim.
func openLedger(ctx context.Context, dir string) (*ledger, error) {
	lock, err := lockDir(ctx, new(flight.Group[string]), dir)
	if err != nil {
		return nil, fmt.Errorf("ledger of bindings %s: lock: %w", dir, err)
	}
	l := &ledger{dir: dir, lock: lock, byVolume: make(map[string]entry), byClaim: make(map[ClaimID]entry)}
	if _, err := durable.Sweep(dir); err != nil {
		l.close()
		return nil, fmt.Errorf("ledger of bindings: %w", err)
	}
	if err := l.load(); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *ledger) close() { l.lock.Close() } // which unlocks

func (l *ledger) load() error {
	files, err := os.ReadDir(l.dir)
	if err != nil {
		return fmt.Errorf("ledger of bindings: %w", err)
	}
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), fileSuffix) || file.Name() == movedFile {
			continue
		}
		path := filepath.Join(l.dir, file.Name())
		e, err := readEntry(path)
		if err == nil {
			err = l.admit(e, file.Name())
		}
		if err != nil {
			return fmt.Errorf("ledger of bindings: %w", &DamagedRecordError{Path: path, Err: err})
		}
	}
	return nil
}

// admit takes an entry in that was read from a file.
func (l *ledger) admit(e entry, file string) error {
	if file != fileName(e.Volume) {
		return fmt.Errorf("it is about the volume %q", e.Volume)
	}
	if other, ok := l.byClaim[e.claim()]; ok {
		return fmt.Errorf("claim %s has volume %q, and by %s volume %q: remove the record of the one that does not hold its data",
			e.claim(), e.Volume, l.path(other.Volume), other.Volume)
	}
	l.byVolume[e.Volume], l.byClaim[e.claim()] = e, e
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

func (l *ledger) path(volumeName string) string { return filepath.Join(l.dir, fileName(volumeName)) }

const (
	fileSuffix = ".json"
	maxFile    = 255 // bytes in a file's name
)

// fileName is the volume's name where a file's name has room for it, else its
// beginning and a digest of the whole.
func fileName(volumeName string) string {
	if len(volumeName)+len(fileSuffix) <= maxFile {
		return volumeName + fileSuffix
	}
	end := fmt.Sprintf("~%x%s", sha256.Sum256([]byte(volumeName)), fileSuffix)
	return strings.ToValidUTF8(volumeName[:maxFile-len(end)], "") + end
}
