// Package store keeps images below a directory, for the pods that use them.
//
//	layers/<digest>/  layers/<digest>.json   each layer once, for all images that have it
//	images/<digest>/  images/<digest>.json   the tree of each image, of links to its layers
//	uses/<name>.json                         which volume of which pod shows which image
//	tmp/                                     what is being made
//
// A directory counts once its record is there, which is written after everything in the
// directory is on disk. So whatever ends a pull, and whenever, leaves nothing that is
// taken for complete, and the layers that were complete stay. A removal begins with the
// record.
//
// Images that no volume shows stay within a budget ([Store.Collect]). Another process may work
// in the same directory: users hold a shared flock(2) of it, removals an exclusive one. When
// nothing is left, the directory goes, too.
package store

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/filelock"
	"github.com/podvol/podvol/util/keylock"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/plugins/image/internal/oci"
)

// ErrDamaged says that a record cannot be read. Nothing is removed until it is gone.
const ErrDamaged volume.Cause = "a record of an image's use is damaged"

// Limits bound what the store takes and keeps.
type Limits struct {
	// Bytes and Entries are the most that one image may unpack to, Layers how many it may
	// have.
	Bytes, Entries int64
	Layers         int
	// Reserve is the part of the disk in percent that stays free.
	Reserve int64
	// UnusedBytes is how much may be kept of layers that no used image has, and of the trees
	// of unused images.
	UnusedBytes int64
	// UnusedFor is for how long an image stays at least after its last use.
	UnusedFor time.Duration
}

// Store is the directory. Its zero value with Dir and Limits is ready. It must not be copied
// after first use, and is safe for concurrent use.
type Store struct {
	// Dir is the absolute path of the directory, which is made when it is needed.
	Dir    string
	Limits Limits
	// Mounted returns the directories that mounts of this machine show, or other strings
	// that end with their names.
	Mounted func() ([]string, error)

	locks   blockingcall.Group[string]
	pulling keylock.Map[string]
}

// ImageDir is the directory with an image's tree.
func (s *Store) ImageDir(digest string) string {
	return filepath.Join(s.Dir, "images", oci.Hex(digest))
}

// Lock keeps other processes and [Store.Collect] from removing anything until unlock.
func (s *Store) Lock(ctx context.Context) (unlock func(), err error) {
	var f *os.File
	err = s.locks.Do(ctx, "", func() (err error) {
		for err == nil && f == nil {
			if err = os.MkdirAll(s.Dir, 0o700); err == nil {
				f, err = s.flock(unix.LOCK_SH)
			}
		}
		if err == nil && ctx.Err() != nil { // the caller has given up
			filelock.Close(f)
			err = context.Cause(ctx)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, dir := range kinds() {
		if err := os.Mkdir(filepath.Join(s.Dir, dir), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			filelock.Close(f)
			return nil, err
		}
	}
	return func() { filelock.Close(f) }, nil
}

// kinds are the directories of the store.
func kinds() []string { return []string{"layers", "images", "uses", "tmp"} }

// flock locks the store's directory; nil: it is not there, or no more.
func (s *Store) flock(how int) (*os.File, error) {
	f, err := filelock.Open(s.Dir, how)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if in, err := durable.InPlace(f, s.Dir); err != nil || !in {
		filelock.Close(f)
		return nil, err
	}
	return f, nil
}
