package persistentvolume_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// newForgetfulWorld is one whose store has nothing after each start but what is
// recorded, and that manifests are applied to.
func newForgetfulWorld(t *testing.T, dir string, manifests ...metav1.Object) *world {
	w := newWorld(t)
	w.records, w.manifests = dir, manifests
	return w.withStorage()
}

// forget makes a new store of what is not recorded: the objects of other kinds
// that manifests have, and the storage, which is elsewhere.
func (w *world) forget() {
	w.t.Helper()
	old := w.store
	w.store = objects.NewStore()
	w.law.store = w.store
	create := func(o metav1.Object) {
		if _, err := w.store.Create(w.t.Context(), o); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, o := range w.manifests {
		if !isRecorded(o) {
			create(o)
		}
	}
	list, err := old.List(w.t.Context(), "ConfigMap", "storage")
	if err != nil {
		w.t.Fatal(err)
	}
	for _, o := range list {
		o := o.(*v1.ConfigMap).DeepCopy()
		o.ResourceVersion = ""
		create(o)
	}
}

func isRecorded(o metav1.Object) bool {
	switch o.(type) {
	case *v1.PersistentVolumeClaim, *v1.PersistentVolume:
		return true
	}
	return false
}

// apply creates what the manifests have and is not there.
func (w *world) apply() {
	w.t.Helper()
	for _, o := range w.manifests {
		if !isRecorded(o) {
			continue
		}
		if _, err := w.api.Create(w.t.Context(), o); err != nil && !errors.Is(err, objects.ErrExists) && !errors.Is(err, objectstest.ErrCrashed) {
			w.t.Fatal(err)
		}
	}
}

// compareRecords says what is recorded otherwise than it is stored.
func (w *world) compareRecords() error {
	if w.records == "" || w.dead() {
		return nil
	}
	recorded := make(map[string]string)
	note := func(all map[string]string, o metav1.Object) {
		o = o.(runtime.Object).DeepCopyObject().(metav1.Object)
		o.SetResourceVersion("")
		data, err := json.Marshal(o)
		if err != nil {
			w.t.Error(err)
		}
		all[fmt.Sprintf("%T %s", o, o.GetName())] = string(data)
	}
	claims, volumes, err := persistentvolume.ReadRecords(w.records)
	if err != nil {
		return err
	}
	for _, c := range claims {
		note(recorded, c)
	}
	for _, pv := range volumes {
		note(recorded, pv)
	}
	stored := make(map[string]string)
	for _, kind := range []string{"PersistentVolumeClaim", "PersistentVolume"} {
		list, err := w.store.List(w.t.Context(), kind, "")
		if err != nil {
			return err
		}
		for _, o := range list {
			note(stored, o)
		}
	}
	if diff := cmp.Diff(stored, recorded); diff != "" {
		return fmt.Errorf("what is recorded (+) is not what is stored (-): %s", diff)
	}
	return nil
}

// dead reports whether the process has died.
func (w *world) dead() bool {
	select {
	case <-w.died:
		return true
	default:
		return false
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

func TestRecordsOutliveTheStore(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newForgetfulWorld(t, dir, storageClass("fast", made, isDefault), newPV("static", "2Gi", class("fast")), newClaim("a", "1Gi"), newClaim("b", "2Gi", naming("static")))
		w.start()
		w.settle()
		w.wantBound("a", "pvc-uid-a")
		w.wantBound("b", "static")
		before := w.claim("a")
		w.stop()

		// The next store declares a volume that would be better for a. What is in
		// no manifest any more stays.
		w.manifests = []metav1.Object{storageClass("fast", made, isDefault), newPV("better", "1Gi", class("fast")), newClaim("c", "2Gi", naming("static"))}
		w.start()
		w.settle()
		w.wantBound("a", "pvc-uid-a")
		w.wantBound("b", "static")
		w.wantClaim("c", v1.ClaimPending)
		after := w.claim("a")
		if c, err := resourceversion.CompareResourceVersion(after.ResourceVersion, before.ResourceVersion); err != nil || c <= 0 {
			t.Errorf("its version was %s and is %s, %v", before.ResourceVersion, after.ResourceVersion, err)
		}
		w.delete("PersistentVolumeClaim", "ops", "a")
		w.delete("PersistentVolumeClaim", "ops", "b")
		w.stop()

		// What was made for a claim goes with it, whenever the process ends.
		w.start()
		w.settle()
		w.wantGone("PersistentVolume", "", "pvc-uid-a")
		if left := w.stored(); len(left) > 0 {
			t.Errorf("storage is left: %v", left)
		}
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
	r, err := persistentvolume.OpenRecords(t.Context(), objects.NewStore(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Create(t.Context(), newPV("pv", "1Gi")); err != nil {
		t.Fatal(err)
	}
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
func TestRecordsSurviveACrashAtEveryCall(t *testing.T) { testCrashes(t, 20, sweepCrashes) }

func TestRecordsSurviveACrashAtEveryChangeOfTheDisk(t *testing.T) {
	testCrashes(t, 20, sweepDiskCrashes)
}

func testCrashes(t *testing.T, atLeast int, sweep func(*testing.T, int, func(*testing.T) *world, func(*world), func(*world))) {
	sweep(t, atLeast, func(t *testing.T) *world {
		w := newForgetfulWorld(t, memoryDir(t), storageClass("fast", made),
			newPV("small", "1Gi"), newPV("large", "3Gi"), newClaim("data", "1Gi", ofClass("fast")), newClaim("short", "1Gi", ofClass("fast")), newClaim("static", "1Gi"))
		w.afterStart = func() {
			time.Sleep(time.Minute)
			_ = w.api.Delete(t.Context(), volume.NewObjectRef("PersistentVolumeClaim", "ops", "short"), objects.Preconditions{})
		}
		return w
	}, func(w *world) {
		w.afterStart = nil
		w.manifests = slices.DeleteFunc(w.manifests, func(o metav1.Object) bool { return o.GetName() == "short" })
		w.manifests = append(w.manifests, newClaim("rival", "1Gi"))
	}, func(w *world) {
		if c, err := w.store.Get(w.t.Context(), volume.NewObjectRef("PersistentVolumeClaim", "ops", "short")); err == nil && c.GetDeletionTimestamp() == nil {
			w.delete("PersistentVolumeClaim", "ops", "short") // the process died before
			w.settle()
		}
		w.wantBound("data", "pvc-uid-data")
		w.wantBound("static", w.claim("static").Spec.VolumeName)
		w.wantBound("rival", w.claim("rival").Spec.VolumeName)
		w.wantGone("PersistentVolumeClaim", "ops", "short")
		w.wantGone("PersistentVolume", "", "pvc-uid-short")
		if left := w.stored(); !slices.Equal(left, []string{"pvc-uid-data"}) {
			w.t.Errorf("storage %v exists", left)
		}
	})
}
