package persisted_test

import (
	"context"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/persisted"
)

// A writer that shares records each write as well, answers with what is shown, and shows nothing
// that the disk has refused.
func TestASharingWriterRecords(t *testing.T) {
	dir, disk := t.TempDir(), new(failingDisk)
	r, err := persisted.OpenOn(t.Context(), objects.NewStore(), dir, disk)
	if err != nil {
		t.Fatal(err)
	}
	w, ref := objects.Sharing(r), volume.NewObjectRef("PersistentVolume", "", "a")
	class, phase := pvbuild.Class("fast"), pvbuild.InPhase(v1.VolumeAvailable)
	for _, step := range []struct {
		write func(context.Context, metav1.Object) (metav1.Object, error)
		given *v1.PersistentVolume
	}{{w.Create, pvbuild.NewPV("a", "1Gi")}, {w.Update, pvbuild.NewPV("a", "1Gi", class)}, {w.UpdateStatus, pvbuild.NewPV("a", "1Gi", phase)}} {
		answer, err := step.write(t.Context(), step.given)
		if err != nil {
			t.Fatal(err)
		}
		if shown, err := r.Get(t.Context(), ref); err != nil || shown != answer {
			t.Errorf("shown is %p, %v, and the answer is %p", shown, err, answer)
		}
	}
	disk.broken, disk.done = true, true
	if _, err := w.Update(t.Context(), pvbuild.NewPV("a", "1Gi")); !errors.Is(err, unix.EIO) {
		t.Errorf("on a disk that fails: %v", err)
	}
	if pv := pvbuild.GetPV(t, r, "a"); pv.Spec.StorageClassName != "fast" {
		t.Errorf("shown is %+v, which the disk has refused", pv)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err = persisted.Open(t.Context(), objects.NewStore(), dir); err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if pv := pvbuild.GetPV(t, r, "a"); pv.Spec.StorageClassName != "fast" || pv.Status.Phase != v1.VolumeAvailable {
		t.Errorf("recorded is %+v", pv)
	}
}

// A writer that embeds the store is asked itself.
func TestSharingOfTheRecordsPassesByNoWriter(t *testing.T) {
	r, err := persisted.Open(t.Context(), objects.NewStore(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if outer := (struct{ *persisted.Store }{r}); objects.Sharing(outer) != objects.Writer(outer) {
		t.Error("another writer was returned")
	}
}
