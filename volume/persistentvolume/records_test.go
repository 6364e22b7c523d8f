package persistentvolume_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// newForgetfulWorld is one whose store has only the manifests after each start.
func newForgetfulWorld(t *testing.T, dir string, manifests ...metav1.Object) *world {
	for _, o := range manifests {
		if o.GetUID() == "" {
			o.SetUID(types.UID("uid-" + o.GetName()))
		}
	}
	w := newWorld(t)
	w.records, w.manifests = dir, manifests
	return w.withStorage()
}

// forget makes a new store of the manifests, and of the storage, which is
// elsewhere.
func (w *world) forget() {
	w.t.Helper()
	old := w.store
	w.store = storeOf(w.t, w.manifests...)
	w.law.store = w.store
	list, err := old.List(w.t.Context(), "ConfigMap", "storage")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, o := range list {
		o := o.(*v1.ConfigMap).DeepCopy()
		o.ResourceVersion = ""
		w.create(o)
	}
}

// memoryDir returns a directory on tmpfs where there is one, since thousands of
// synced files take their time on a disk.
func memoryDir(t *testing.T) string {
	dir, err := "", error(nil)
	if os.Getenv("TMPDIR") == "" {
		dir, err = os.MkdirTemp("/dev/shm", "records")
	}
	if dir == "" || err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// undeclare removes a manifest.
func (w *world) undeclare(name string) {
	w.manifests = slices.DeleteFunc(w.manifests, func(o metav1.Object) bool { return o.GetName() == name })
}

func TestRecordsOutliveTheStore(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newForgetfulWorld(t, dir, storageClass("fast", made, isDefault), newPV("static", "2Gi", class("fast")), newClaim("a", "1Gi"), newClaim("b", "2Gi", naming("static")))
		w.start()
		w.settle()
		w.wantBound("a", "pvc-uid-a")
		w.wantBound("b", "static")
		w.stop()

		// The next store declares a volume that would be better for a, and a
		// claim that would have got the one of b, which is declared no more.
		w.undeclare("b")
		w.manifests = append(w.manifests, newPV("better", "1Gi", class("fast")), newClaim("c", "2Gi", naming("static")))
		w.start()
		w.settle()
		w.wantBound("a", "pvc-uid-a")
		w.wantPV("static", v1.VolumeReleased)
		w.wantClaim("c", v1.ClaimPending)
		w.stop()

		// What was made for a claim goes with it, though nobody was there.
		w.undeclare("a")
		w.start()
		w.settle()
		w.wantGone("PersistentVolume", "", "pvc-uid-a")
		if left := w.stored(); len(left) > 0 {
			t.Errorf("storage is left: %v", left)
		}
		w.stop()

		// A static volume may be declared no more, and again.
		w.undeclare("static")
		w.start()
		w.settle()
		w.stop()
		w.manifests = append(w.manifests, newPV("static", "2Gi", class("fast"), func(pv *v1.PersistentVolume) { pv.UID = "uid-static" }))
		w.start()
		w.settle()
		w.wantPV("static", v1.VolumeReleased)
		w.wantClaim("c", v1.ClaimPending)
	})
	info, err := os.Stat(filepath.Join(dir, "volume~static.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("record: %v, %v", info, err)
	}
}

func TestADamagedRecordStopsEverything(t *testing.T) {
	for name, content := range map[string]string{
		"cut off": `{"schemaVersion":1,"vol`, "of another version": `{"schemaVersion":2,"volume":{}}`, "about nothing": `{"schemaVersion":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "volume~pv.json")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := persistentvolume.OpenRecords(t.Context(), objects.NewStore(), dir)
			if err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestARefusedWriteLeavesTheRecord(t *testing.T) {
	dir := t.TempDir()
	store := storeOf(t, newPV("pv", "1Gi"))
	r, err := persistentvolume.OpenRecords(t.Context(), store, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pv := getPV(t, r, "pv").DeepCopy()
	forClaim("data", "1")(pv)
	if _, err := r.Update(t.Context(), pv); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, "volume~pv.json"))
	if err != nil {
		t.Fatal(err)
	}
	forClaim("thief", "2")(pv) // at a version that is not the stored one any more
	if _, err := r.Update(t.Context(), pv); !errors.Is(err, objects.ErrConflict) {
		t.Errorf("err = %v", err)
	}
	if after, err := os.ReadFile(filepath.Join(dir, "volume~pv.json")); err != nil || string(after) != string(before) {
		t.Errorf("the record is now %s, %v", after, err)
	}
	// What cannot be recorded is not written.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	pv = getPV(t, r, "pv").DeepCopy()
	pv.Spec.ClaimRef = nil
	if _, err := r.Update(t.Context(), pv); err == nil || getPV(t, r, "pv").Spec.ClaimRef == nil {
		t.Errorf("err = %v", err)
	}
}

// Whatever call the process dies at, with a store that forgets everything: the
// records are enough to go on.
func TestRecordsSurviveACrashAtEveryCall(t *testing.T) {
	sweepCrashes(t, 20, func(t *testing.T) *world {
		w := newForgetfulWorld(t, memoryDir(t), storageClass("fast", made),
			newPV("small", "1Gi"), newPV("large", "3Gi"), newClaim("data", "1Gi", ofClass("fast")), newClaim("short", "1Gi", ofClass("fast")), newClaim("static", "1Gi"))
		w.afterStart = func() {
			time.Sleep(time.Minute)
			w.undeclare("short")
			_ = w.store.Delete(t.Context(), volume.NewObjectRef("PersistentVolumeClaim", "ops", "short"), objects.Preconditions{})
		}
		return w
	}, func(w *world) {
		w.afterStart = nil
		w.manifests = append(w.manifests, newClaim("rival", "1Gi"))
	}, func(w *world) {
		w.wantBound("data", "pvc-uid-data")
		w.wantBound("static", w.claim("static").Spec.VolumeName)
		w.wantBound("rival", w.claim("rival").Spec.VolumeName)
		w.wantGone("PersistentVolume", "", "pvc-uid-short")
		if left := w.stored(); !slices.Equal(left, []string{"pvc-uid-data"}) {
			w.t.Errorf("storage %v exists", left)
		}
	})
}
