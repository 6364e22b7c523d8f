package persistentvolume_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// lostClaimWorld has a claim with a volume that was made for it, and whose file is
// lost while nothing runs.
func lostClaimWorld(t *testing.T) (w *world, dir string) {
	dir = pvbuild.MemoryDir(t)
	w = newForgetfulWorld(t, dir, storageClass("made", made))
	w.start()
	w.create(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("made")))
	w.settle()
	w.wantBound("data", "pvc-uid-data")
	w.stop()
	if err := os.Remove(filepath.Join(dir, "claim~ops~data.json")); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.settle()
	return w, dir
}

// A claim whose file is lost gets its volume again once it is declared again, and
// until then nothing is deleted, however often the program starts.
func TestAClaimWhoseFileIsLostGetsItsVolumeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _ := lostClaimWorld(t)
		for range 2 {
			w.wantPV("pvc-uid-data", v1.VolumeAvailable)
			if pv := w.pv("pvc-uid-data"); !strings.Contains(pv.Status.Message, `"ops/data" was lost`) || pv.DeletionTimestamp != nil || len(w.stored()) != 1 {
				t.Errorf("message %q, storage %v", pv.Status.Message, w.stored())
			}
			w.create(pvbuild.NewClaim("other", "1Gi", withClaimUID("other")))
			w.settle()
			if got := w.claim("other").Spec.VolumeName; got != "" {
				t.Errorf("another claim got %q", got)
			}
			w.delete("PersistentVolumeClaim", "ops", "other")
			w.stop()
			w.start()
			w.settle()
		}
		w.create(pvbuild.NewClaim("data", "3Gi", pvbuild.OfClass("made"), withClaimUID(""))) // and more than it had
		w.settle()
		w.wantBound("data", "pvc-uid-data")
		if pv := w.pv("pvc-uid-data"); pv.Annotations[pvapi.LostClaimAnnotation] != "" || pv.Status.Message != "" || len(w.stored()) != 1 {
			t.Errorf("annotations %v, message %q, storage %v", pv.Annotations, pv.Status.Message, w.stored())
		}
		// From now on it goes with its claim, of which no file is left.
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
	})
}

// A claim that was deleted is no lost one, wherever the program was killed: its volume
// is reclaimed, and in the end no file is left.
func TestAClaimThatWasDeletedIsNotLost(t *testing.T) {
	for n, more := 1, true; more && !t.Failed(); n++ {
		synctest.Test(t, func(t *testing.T) {
			dir := pvbuild.MemoryDir(t)
			w := newForgetfulWorld(t, dir, storageClass("made", made))
			w.start()
			w.create(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("made")))
			w.settle()
			w.wantBound("data", "pvc-uid-data")
			w.died = w.client.CrashAt(n, true)
			remove := func() { _ = w.api.Delete(context.Background(), pvbuild.ClaimRef("data"), objects.Preconditions{}) }
			remove()
			w.settle()
			more = w.dead()
			w.stop()
			w.start()
			remove() // if that has not happened
			w.settle()
			w.wantGone("PersistentVolume", "", "pvc-uid-data")
			w.stop()
			w.start()
			w.settle()
			if files, err := filepath.Glob(filepath.Join(dir, "*~*")); len(files) > 0 || err != nil {
				t.Errorf("dying at call %d leaves %v, %v", n, files, err)
			}
		})
	}
}
