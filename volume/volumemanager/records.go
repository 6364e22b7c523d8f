package volumemanager

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/mountrecord"
)

// volumeKey is the identity of a mounted volume: its directory below pods/.
type volumeKey struct {
	podUID types.UID
	plugin string
	spec   string // the spec's name
}

func keyOf(r *mountrecord.Record) volumeKey {
	return volumeKey{podUID: r.PodUID, plugin: r.Plugin, spec: r.Spec().Name()}
}

// String is the volume's path below pods/, as far as the key goes.
func (k volumeKey) String() string {
	return string(k.podUID) + "/" + volume.EscapeQualifiedName(k.plugin) + "/" + k.spec
}

// parseKey undoes String.
func parseKey(s string) (volumeKey, bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return volumeKey{}, false
	}
	return volumeKey{types.UID(parts[0]), volume.UnescapeQualifiedName(parts[1]), parts[2]}, true
}

// records are the volumes' records in the journal below podvol/. It is a
// journal and not a file for each, since a record must reach the disk before
// its volume is touched, and the sync of an append is all that this costs.
type records struct {
	journal *journal.Journal
	buried  *buried
}

func recordsPath(rootDir string) string { return filepath.Join(StateDir(rootDir), "records") }

// openRecords opens the journal of a root that the caller owns, and returns
// the records and what could not be read of them. Damage of the file as a whole
// is kept beside it; see damageBelow.
func openRecords(rootDir string) (r records, found []*mountrecord.Record, unreadable []*UnreadableRecordError, err error) {
	j, held, _, err := journal.Open(recordsPath(rootDir))
	if err != nil {
		return records{}, nil, nil, err
	}
	r = records{j, newBuried(rootDir)}
	found, unreadable = decodeRecords(rootDir, held)
	_, earlier := splitBuried(rootDir, held)
	earlier.settle(r)
	return r, found, unreadable, nil
}

// write stores an encoded record and returns when it will survive a crash.
func (r records) write(key volumeKey, line []byte) error {
	return r.journal.Put(key.String(), line)
}

// confirm notes that the recorded volume is set up.
func (r records) confirm(key volumeKey, c mountrecord.Confirmation) error {
	line, err := mountrecord.EncodeConfirmation(c)
	if err != nil {
		return err
	}
	return r.journal.Note(key.String(), line)
}

// rewrite stores a record as it was, with its confirmation.
func (r records) rewrite(key volumeKey, record *mountrecord.Record) error {
	line, err := mountrecord.Encode(record)
	if err != nil {
		return err
	}
	if err := r.write(key, line); err != nil || record.Confirmed == nil {
		return err
	}
	return r.confirm(key, *record.Confirmed)
}

// recordDigest stands for an encoded record.
type recordDigest [sha256.Size]byte

func digestOf(line []byte) recordDigest { return sha256.Sum256(line) }

func digestOfRecord(record *mountrecord.Record) (recordDigest, error) {
	line, err := mountrecord.Encode(record)
	return digestOf(line), err
}

// remove deletes the record; a missing one is success. It is for volumes of which
// nothing was removed; see [records.release].
func (r records) remove(key volumeKey) error { return r.journal.Delete(key.String()) }

// close ends the writing; of records that were never opened, it does nothing.
func (r records) close() error {
	if r.journal == nil {
		return nil
	}
	r.settleAll()
	return r.journal.Close()
}

// UnreadableRecordError is a record that this podvol cannot read. The volume
// it stands for, if it is mounted, is left alone, and the record is kept.
type UnreadableRecordError struct {
	// Volume is the volume's path below pods/, without "volumes".
	Volume string
	// Path is the volume's directory; empty where the record has not even the
	// key of a volume.
	Path string
	Err  error
}

// status is the row of a volume whose record cannot be read.
func (e *UnreadableRecordError) status(key volumeKey) VolumeStatus {
	return VolumeStatus{PodUID: key.podUID, Volume: key.spec, Plugin: key.plugin, Path: e.Path, State: StateFailed, Found: true, Err: e}
}

func (e *UnreadableRecordError) Error() string {
	return fmt.Sprintf("the record of volume %s cannot be read: %v; the volume is left as it is, and the record too", e.Volume, e.Err)
}

// Unwrap returns the reason, which matches mountrecord.ErrDamaged or
// mountrecord.ErrNewer.
func (e *UnreadableRecordError) Unwrap() error { return e.Err }

func decodeRecords(rootDir string, held []journal.Entry) (found []*mountrecord.Record, unreadable []*UnreadableRecordError) {
	live, earlier := splitBuried(rootDir, held)
	for _, entry := range append(live, earlier.back...) {
		record, err := decodeRecord(entry)
		if err != nil {
			e := &UnreadableRecordError{Volume: entry.Key, Err: err}
			if key, ok := parseKey(entry.Key); ok {
				e.Path = volumePlace(rootDir, key)
			}
			unreadable = append(unreadable, e)
			continue
		}
		found = append(found, record)
	}
	return found, unreadable
}

func decodeRecord(entry journal.Entry) (*mountrecord.Record, error) {
	record, err := mountrecord.Decode(entry.Value, entry.Note)
	if err != nil {
		return nil, err
	}
	if keyOf(record).String() != entry.Key {
		return nil, fmt.Errorf("%w: it is another volume's", mountrecord.ErrDamaged)
	}
	return record, nil
}
