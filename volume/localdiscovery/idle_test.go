package localdiscovery_test

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/localdiscovery"
)

// counting counts how often the volumes are read.
type counting struct {
	localdiscovery.Objects
	lists atomic.Int64
	fail  atomic.Bool // the next time
}

func (c *counting) List(ctx context.Context, kind, namespace string) ([]metav1.Object, error) {
	c.lists.Add(1)
	return c.Objects.List(ctx, kind, namespace)
}

func (c *counting) Create(ctx context.Context, o metav1.Object) (metav1.Object, error) {
	if c.fail.Swap(false) {
		return nil, errFull
	}
	return c.Objects.Create(ctx, o)
}

// Mounts elsewhere, and other volumes, cost nothing; what is of no interest is not
// even looked at.
func TestRunIsIdleWhileNothingOfItsOwnChanges(t *testing.T) {
	dir, fake, store, d := disks(t)
	count := &counting{Objects: store}
	d.Objects = count
	mountDisk(t, fake, filepath.Join(dir, "a"))
	until := running(t, store, d)
	until("it is offered", func(all []*v1.PersistentVolume) bool { return byPath(all, filepath.Join(dir, "a")) != nil })
	for range 50 {
		elsewhere := filepath.Join(t.TempDir(), "pod")
		mountDisk(t, fake, elsewhere)
		pv := &v1.PersistentVolume{}
		pv.Name = "other-" + filepath.Base(filepath.Dir(elsewhere))
		pv.Spec.NFS = &v1.NFSVolumeSource{Server: "s", Path: "/p"}
		if _, err := store.Create(t.Context(), pv); err != nil {
			t.Fatal(err)
		}
	}
	mountDisk(t, fake, filepath.Join(dir, "b"))
	until("another is offered", func(all []*v1.PersistentVolume) bool { return byPath(all, filepath.Join(dir, "b")) != nil })
	if n := count.lists.Load(); n > 8 {
		t.Errorf("the volumes were read %d times for two disks", n)
	}
}

// What failed is tried again without a sign.
func TestRunTriesAgain(t *testing.T) {
	dir, fake, store, d := disks(t)
	count := &counting{Objects: store}
	count.fail.Store(true)
	d.Objects = count
	mountDisk(t, fake, filepath.Join(dir, "a"))
	until := running(t, store, d)
	until("it is offered", func(all []*v1.PersistentVolume) bool { return byPath(all, filepath.Join(dir, "a")) != nil })
	if count.fail.Load() {
		t.Error("the store has not failed")
	}
}
