package persistentvolume_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/objects/persisted"
)

// open opens the records.
func (w *world) open(ctx context.Context) (*persisted.Store, error) {
	var disk persisted.Disk = persisted.DurableDisk{}
	if w.diskAt > 0 {
		dying := &dyingDisk{at: w.diskAt, mode: w.diskMode, hit: &w.diskHit, client: w.client, died: make(chan struct{})}
		disk, w.died, w.diskAt = dying, dying.died, 0
	}
	return persisted.OpenOn(ctx, w.client, w.records, disk)
}

var errFull = errors.New("no space left on device")

// dyingDisk is one at whose n-th change the process dies: before it, after it,
// or half-way; or this one change alone fails, or nobody knows whether it has.
type dyingDisk struct {
	persisted.DurableDisk
	at     int
	mode   string
	hit    *atomic.Bool
	client *objectstest.Client
	died   chan struct{}

	mu    sync.Mutex
	count int
}

func (d *dyingDisk) WriteFile(path string, data []byte, perm fs.FileMode) error {
	return d.do(func() error { return d.DurableDisk.WriteFile(path, data, perm) },
		func() error {
			return os.WriteFile(filepath.Join(filepath.Dir(path), ".durable-half.tmp"), data[:len(data)/2], perm)
		})
}

func (d *dyingDisk) Remove(path string) error {
	return d.do(func() error { return d.DurableDisk.Remove(path) }, func() error { return nil })
}

func (d *dyingDisk) do(change, half func() error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	switch {
	case d.count < d.at:
		return change()
	case d.count > d.at && (d.mode == "full" || d.mode == "uncertain"):
		return change()
	case d.count > d.at:
		return objectstest.ErrCrashed
	}
	d.hit.Store(true)
	switch d.mode {
	case "full":
		return errFull
	case "uncertain":
		return errors.Join(change(), &durable.Error{Op: "sync", Path: "the directory", Replaced: true, Err: errFull})
	}
	d.client.CrashAt(1, false) // it does nothing any more
	close(d.died)
	switch d.mode {
	case "after":
		return errors.Join(change(), objectstest.ErrCrashed)
	case "half-way":
		return errors.Join(half(), objectstest.ErrCrashed)
	}
	return objectstest.ErrCrashed
}

// sweepDiskCrashes is sweepCrashes for every change of the disk.
func sweepDiskCrashes(t *testing.T, atLeast int, prepare func(*testing.T) *world, meanwhile, check func(*world)) {
	t.Helper()
	for _, mode := range []string{"before", "half-way", "after"} {
		crashed := true
		n := 1
		for ; crashed; n += sweepStep() {
			synctest.Test(t, func(t *testing.T) {
				w := prepare(t)
				w.diskAt, w.diskMode = n, mode
				w.start()
				if w.afterStart != nil {
					w.afterStart()
				}
				w.settle()
				w.stop()
				crashed = w.dead()
				meanwhile(w)
				w.start()
				w.settle()
				check(w)
			})
			if t.Failed() {
				t.Fatalf("dying at change %d of the disk, %s", n, mode)
			}
		}
		if n < atLeast {
			t.Fatalf("only %d changes were made", n)
		}
	}
}

// Nobody reaches the store below, in which a write would not survive.
func TestNobodyWritesPastTheDisk(t *testing.T) {
	for field := range reflect.TypeFor[persisted.Store]().Fields() {
		if field.IsExported() {
			t.Errorf("field %s is exported", field.Name)
		}
	}
}
