package persisted_test

import (
	"context"
	"errors"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/persisted"
)

// failingDisk is one that, once broken, does what it is told and confirms
// nothing, and then does nothing any more.
type failingDisk struct {
	persisted.DurableDisk
	broken, done bool
}

func (d *failingDisk) WriteFile(path string, data []byte, perm fs.FileMode) error {
	return d.do(path, func() error { return d.DurableDisk.WriteFile(path, data, perm) })
}

func (d *failingDisk) Remove(path string) error {
	return d.do(path, func() error { return d.DurableDisk.Remove(path) })
}

func (d *failingDisk) do(path string, change func() error) error {
	switch {
	case !d.broken:
		return change()
	case d.done:
		return &durable.Error{Op: "write", Path: path, Err: unix.EIO}
	}
	d.done = true
	return errors.Join(change(), &durable.Error{Op: "write", Path: path, Replaced: true, Err: unix.EIO})
}

// The disk has a change that the store does not show, and may have it after the
// next crash or not: to go on from either would be a guess.
func TestNothingIsWrittenOnceNobodyKnowsWhatIsRecorded(t *testing.T) {
	pv := pvbuild.NewPV("a", "1Gi")
	ref := volume.NewObjectRef("PersistentVolume", "", "a")
	for name, change := range map[string]func(context.Context, *persisted.Store) error{
		"create": func(ctx context.Context, r *persisted.Store) error {
			_, err := r.Create(ctx, pvbuild.NewPV("b", "1Gi"))
			return err
		},
		"update": func(ctx context.Context, r *persisted.Store) error {
			_, err := r.Update(ctx, pvbuild.NewPV("a", "1Gi", pvbuild.Class("other")))
			return err
		},
		"delete": func(ctx context.Context, r *persisted.Store) error {
			return r.Delete(ctx, ref, objects.Preconditions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir, disk := t.TempDir(), new(failingDisk)
			r, err := persisted.OpenOn(t.Context(), objects.NewStore(), dir, disk)
			if err == nil {
				_, err = r.Create(t.Context(), pv)
			}
			if err != nil {
				t.Fatal(err)
			}
			disk.broken = true
			if err := change(t.Context(), r); !errors.Is(err, unix.EIO) || !errors.Is(err, objects.ErrUncertain) {
				t.Errorf("the change that was not confirmed: %v", err)
			}
			disk.broken = false // but nobody has said what it has
			_, err = r.Create(t.Context(), pvbuild.NewPV("c", "1Gi"))
			if uncertain, ok := errors.AsType[*persisted.UncertainError](err); !ok || uncertain.Dir != dir || errors.Is(err, objects.ErrUncertain) {
				t.Errorf("the next write: %v", err)
			}
			if _, err := r.Get(t.Context(), ref); err != nil {
				t.Errorf("what is stored cannot be read: %v", err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			r, err = persisted.Open(t.Context(), objects.NewStore(), dir)
			if err == nil {
				_, err = r.Create(t.Context(), pvbuild.NewPV("c", "1Gi"))
			}
			if err := errors.Join(err, r.Close()); err != nil {
				t.Errorf("after a restart: %v", err)
			}
		})
	}
}
