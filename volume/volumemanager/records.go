package volumemanager

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume"
)

// volumeKey is the identity of a mounted volume: its directory below pods/.
type volumeKey struct {
	podUID types.UID
	plugin string
	spec   string // the spec's name
}

func keyOf(r *volume.Record) volumeKey {
	return volumeKey{podUID: r.PodUID, plugin: r.Plugin, spec: r.Spec().Name()}
}

func recordsDir(rootDir string) string { return filepath.Join(ownDir(rootDir), "records") }

// records are the files below podvol/records, one for each volume.
type records struct{ dir string }

const recordSuffix = ".json"

// path names a record's file by the pod's UID, for people, and a digest of the
// whole key, since the three names together may exceed what a file name holds.
func (r records) path(key volumeKey) string {
	sum := sha256.Sum256([]byte(string(key.podUID) + "\x00" + key.plugin + "\x00" + key.spec))
	uid := string(key.podUID)
	if len(uid) > 64 {
		uid = uid[:64]
	}
	return filepath.Join(r.dir, uid+"_"+hex.EncodeToString(sum[:12])+recordSuffix)
}

// write stores an encoded record and returns when it will survive a crash.
func (r records) write(key volumeKey, line []byte) error {
	return durable.WriteFile(r.path(key), line, 0o600)
}

// confirm appends the confirmation to a record that is there.
func (r records) confirm(key volumeKey, c volume.Confirmation) error {
	line, err := volume.EncodeConfirmation(c)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(r.path(key), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = file.Write(line)
	return err
}

// remove deletes the record; a missing one is success.
func (r records) remove(key volumeKey) error { return durable.Remove(r.path(key)) }

// DamagedRecordError says which record cannot be read. The volume it stood
// for, if it is mounted, is left alone.
type DamagedRecordError struct {
	Path string
	Err  error
}

func (e *DamagedRecordError) Error() string {
	return fmt.Sprintf("%s: %v; its volume is left as it is, and the record too", e.Path, e.Err)
}

// Unwrap returns the reason, which matches volume.ErrRecordDamaged or is a
// *volume.RecordVersionError.
func (e *DamagedRecordError) Unwrap() error { return e.Err }

// load reads all records, and says which it could not read. A directory that
// does not exist has none.
func (r records) load() (found []*volume.Record, damaged []error, err error) {
	entries, err := os.ReadDir(r.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), recordSuffix) {
			continue
		}
		path := filepath.Join(r.dir, entry.Name())
		record, err := r.read(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed by its owner meanwhile
		case err != nil:
			damaged = append(damaged, &DamagedRecordError{Path: path, Err: err})
		default:
			found = append(found, record)
		}
	}
	return found, damaged, nil
}

func (r records) read(path string) (*volume.Record, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	record, err := volume.DecodeRecord(data)
	if err != nil {
		return nil, err
	}
	if r.path(keyOf(record)) != path {
		return nil, fmt.Errorf("%w: it is another volume's", volume.ErrRecordDamaged)
	}
	return record, nil
}
