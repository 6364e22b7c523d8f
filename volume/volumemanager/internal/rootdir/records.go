package rootdir

import (
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/journal"
	"github.com/podvol/podvol/volume/layout"
	"github.com/podvol/podvol/volume/mountrecord"
)

// Key is the identity of a mounted volume: its directory below pods/.
type Key struct {
	PodUID types.UID
	Plugin string
	Spec   string // the spec's name
}

// KeyOf returns the key of a recorded volume.
func KeyOf(r *mountrecord.Record) Key {
	return Key{PodUID: r.PodUID, Plugin: r.Plugin, Spec: r.Spec().Name()}
}

// String is the volume's path below pods/, as far as the key goes.
func (k Key) String() string {
	return string(k.PodUID) + "/" + layout.EscapeQualifiedName(k.Plugin) + "/" + k.Spec
}

// ParseKey undoes String.
func ParseKey(s string) (Key, bool) {
	parts := strings.Split(s, "/")
	if len(parts) != 3 {
		return Key{}, false
	}
	return Key{types.UID(parts[0]), layout.UnescapeQualifiedName(parts[1]), parts[2]}, true
}

// Records are the volumes' records in the journal below podvol/. It is a
// journal and not a file for each, since a record must reach the disk before
// its volume is touched, and the sync of an append is all that this costs.
type Records struct {
	journal    *journal.Journal
	tombstones *tombstones
}

// RecordsPath returns the path of the journal of records.
func RecordsPath(rootDir string) string { return filepath.Join(StateDir(rootDir), "records") }

// OpenRecords opens the journal of a root that the caller owns, and returns
// the records and what could not be read of them. Damage of the file as a whole
// is kept beside it; see [Damaged].
func OpenRecords(rootDir string) (r Records, found []*mountrecord.Record, unreadable []*UnreadableRecordError, err error) {
	j, held, _, err := journal.Open(RecordsPath(rootDir))
	if err != nil {
		return Records{}, nil, nil, err
	}
	r = Records{j, newTombstones(rootDir)}
	found, unreadable = decodeRecords(rootDir, held)
	_, earlier := splitTombstones(rootDir, held)
	earlier.recover(r)
	return r, found, unreadable, nil
}

// ReadRecords reads the records without owning the root directory; damaged is nil where
// none are known to be lost. An error is a *[Error].
func ReadRecords(rootDir string) (found []*mountrecord.Record, unreadable []*UnreadableRecordError, damaged *DamagedError, err error) {
	held, damage, err := journal.Read(RecordsPath(rootDir))
	if err != nil {
		return nil, nil, nil, &Error{rootDir, err}
	}
	found, unreadable = decodeRecords(rootDir, held)
	return found, unreadable, newDamagedError(rootDir, damage), nil
}

// Write stores an encoded record and returns when it will survive a crash.
func (r Records) Write(key Key, line []byte) error {
	return r.journal.Put(key.String(), line)
}

// Confirm notes that the recorded volume is set up.
func (r Records) Confirm(key Key, c mountrecord.Confirmation) error {
	line, err := mountrecord.EncodeConfirmation(c)
	if err != nil {
		return err
	}
	return r.journal.Note(key.String(), line)
}

// Rewrite stores a record as it was, with its confirmation.
func (r Records) Rewrite(key Key, record *mountrecord.Record) error {
	line, err := mountrecord.Encode(record)
	if err != nil {
		return err
	}
	if err := r.Write(key, line); err != nil || record.Confirmed == nil {
		return err
	}
	return r.Confirm(key, *record.Confirmed)
}

// Digest stands for an encoded record.
type Digest [sha256.Size]byte

// DigestOf returns the digest of an encoded record.
func DigestOf(line []byte) Digest { return sha256.Sum256(line) }

// DigestOfRecord returns the digest of a record in its encoded form.
func DigestOfRecord(record *mountrecord.Record) (Digest, error) {
	line, err := mountrecord.Encode(record)
	return DigestOf(line), err
}

// Remove deletes the record; a missing one is success. It is for volumes of which
// nothing was removed; see [Records.Release].
func (r Records) Remove(key Key) error { return r.journal.Delete(key.String()) }

// Close ends the writing; of records that were never opened, it does nothing.
func (r Records) Close() error {
	if r.journal == nil {
		return nil
	}
	r.forgetAllGone()
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

func (e *UnreadableRecordError) Error() string {
	return fmt.Sprintf("the record of volume %s cannot be read: %v; the volume is left as it is, and the record too", e.Volume, e.Err)
}

// Unwrap returns the reason, which matches mountrecord.ErrDamaged or
// mountrecord.ErrNewer.
func (e *UnreadableRecordError) Unwrap() error { return e.Err }

func decodeRecords(rootDir string, held []journal.Entry) (found []*mountrecord.Record, unreadable []*UnreadableRecordError) {
	live, earlier := splitTombstones(rootDir, held)
	for _, entry := range append(live, earlier.back...) {
		record, err := decodeRecord(entry)
		if err != nil {
			e := &UnreadableRecordError{Volume: entry.Key, Err: err}
			if key, ok := ParseKey(entry.Key); ok {
				e.Path = VolumePlace(rootDir, key)
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
	if KeyOf(record).String() != entry.Key {
		return nil, fmt.Errorf("%w: it is another volume's", mountrecord.ErrDamaged)
	}
	return record, nil
}
