package persistentvolume_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/util/seal"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/objects/persisted"
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
		if _, err := w.api.Create(w.t.Context(), o); err != nil && !errors.Is(err, objects.ErrExists) && !errors.Is(err, objectstest.ErrCrashed) && !errors.Is(err, errFull) {
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
	claims, volumes, err := persisted.Read(w.records)
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

func TestRecordsOutliveTheStore(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newForgetfulWorld(t, dir, storageClass("fast", made, isDefault), pvbuild.NewPV("static", "2Gi", pvbuild.Class("fast")), pvbuild.NewClaim("a", "1Gi"), pvbuild.NewClaim("b", "2Gi", pvbuild.OfClass("fast"), pvbuild.Naming("static")))
		w.start()
		w.settle()
		w.wantBound("a", "pvc-uid-a")
		w.wantBound("b", "static")
		before := w.claim("a")
		w.stop()

		// The next store declares a volume that would be better for a. What is in
		// no manifest any more stays.
		w.manifests = []metav1.Object{storageClass("fast", made, isDefault), pvbuild.NewPV("better", "1Gi", pvbuild.Class("fast")), pvbuild.NewClaim("c", "2Gi", pvbuild.OfClass("fast"), pvbuild.Naming("static"))}
		w.start()
		w.settle()
		w.wantBound("a", "pvc-uid-a")
		w.wantBound("b", "static")
		w.wantClaim("c", v1.ClaimPending)
		after := w.claim("a")
		if c, err := kubeapi.CompareResourceVersion(after.ResourceVersion, before.ResourceVersion); err != nil || c <= 0 {
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
		"cut off": `{"schemaVersion":2,"vol`, "empty": ``, "of another version": `{"schemaVersion":3,"volume":{"metadata":{"name":"pv","uid":"1"}}}`,
		"about nothing": `{"schemaVersion":2}`, "about two": `{"schemaVersion":2,"volume":{"metadata":{"name":"pv","uid":"1"}},"claim":{}}`,
		"about another": `{"schemaVersion":2,"volume":{"metadata":{"name":"other","uid":"1"}}}`, "without UID": `{"schemaVersion":2,"volume":{"metadata":{"name":"pv"}}}`,
		"about what is deleted": `{"schemaVersion":2,"volume":{"metadata":{"name":"pv","uid":"1","deletionTimestamp":"2026-01-02T03:04:05Z"}}}`,
		"of an unknown type":    `{"schemaVersion":2,"volume":{"metadata":{"name":"pv","uid":1}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r := openRecords(t, dir)
			if _, err := r.Create(t.Context(), pvbuild.NewClaim("data", "1Gi")); err != nil {
				t.Fatal(err)
			}
			r.Close()
			path := filepath.Join(dir, "volume~pv.json")
			if err := os.WriteFile(path, seal.Add([]byte(content+"\n")), 0o600); err != nil {
				t.Fatal(err)
			}
			store := objects.NewStore()
			_, err := persisted.Open(t.Context(), store, dir)
			damaged, ok := errors.AsType[*persisted.DamagedError](err)
			if !ok || damaged.Path != path || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "restore it") {
				t.Errorf("err = %v", err)
			}
			if list, err := store.List(t.Context(), "PersistentVolumeClaim", ""); len(list) > 0 || err != nil {
				t.Errorf("%v were loaded, %v", list, err)
			}
			if _, _, err := persisted.Read(dir); !errors.As(err, &damaged) {
				t.Errorf("Read: %v", err)
			}
			// What the error says to do helps.
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			r = openRecords(t, dir)
			defer r.Close()
			pvbuild.GetClaim(t, r, "data")
		})
	}
	t.Run("versions", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "versions.json")
		if err := os.WriteFile(path, []byte(`{"sch`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := persisted.Open(t.Context(), objects.NewStore(), dir); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("err = %v", err)
		}
	})
}

// What came back is as it was, and whoever has an earlier version of it, or of
// another object of its name, has an earlier version.
func TestWhatComesBackIsAsItWas(t *testing.T) {
	dir := t.TempDir()
	r := openRecords(t, dir)
	claim := pvbuild.NewClaim("data", "1Gi", pvbuild.Naming("pv"), complete)
	claim.Labels, claim.Finalizers = map[string]string{"a": "b"}, []string{"example.com/keep"}
	claim.UID = ""
	made, err := r.Create(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	status := made.(*v1.PersistentVolumeClaim).DeepCopy()
	status.Status.Phase = v1.ClaimBound
	if _, err := r.UpdateStatus(t.Context(), status); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), pvbuild.ClaimRef("data"), objects.Preconditions{UID: status.UID}); err != nil {
		t.Fatal(err)
	}
	before := pvbuild.GetClaim(t, r, "data")
	if before.DeletionTimestamp == nil {
		t.Fatal("it is not being deleted")
	}
	_, err = r.Create(t.Context(), pvbuild.NewPV("gone", "1Gi"))
	if err := errors.Join(err, r.Delete(t.Context(), volume.NewObjectRef("PersistentVolume", "", "gone"), objects.Preconditions{})); err != nil {
		t.Fatal(err)
	}
	later, err := r.Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "later"}})
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Create(t.Context(), pvbuild.NewPV("late", "1Gi")); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a write after Close: %v", err)
	}

	r = openRecords(t, dir)
	defer r.Close()
	after := pvbuild.GetClaim(t, r, "data")
	if c, err := kubeapi.CompareResourceVersion(after.ResourceVersion, later.GetResourceVersion()); err != nil || c <= 0 {
		t.Errorf("its version is %s after %s, %v", after.ResourceVersion, later.GetResourceVersion(), err)
	}
	jsonOf := func(c *v1.PersistentVolumeClaim) string {
		c = c.DeepCopy()
		c.ResourceVersion = ""
		data, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if diff := cmp.Diff(jsonOf(before), jsonOf(after)); diff != "" {
		t.Errorf("it is not as it was: %s", diff)
	}
	// Who holds it from before must read it first.
	if _, err := r.Update(t.Context(), before); !errors.Is(err, objects.ErrConflict) {
		t.Errorf("err = %v", err)
	}
	free := after.DeepCopy()
	free.Finalizers = nil
	if _, err := r.Update(t.Context(), free); err != nil {
		t.Fatal(err)
	}
	if files, err := filepath.Glob(filepath.Join(dir, "claim~*")); len(files) > 0 || err != nil {
		t.Errorf("left: %v, %v", files, err)
	}
}

func hasUID(uid types.UID) pvbuild.ClaimOption {
	return func(c *v1.PersistentVolumeClaim) { c.UID = uid }
}

// A volume's name may have 253 characters, and a file's 255 bytes.
func TestLongNames(t *testing.T) {
	for _, length := range []int{235, 247, 253} {
		t.Run(fmt.Sprint(length), func(t *testing.T) {
			dir := t.TempDir()
			one, two := strings.Repeat("x", length-1)+"1", strings.Repeat("x", length-1)+"2"
			r := openRecords(t, dir)
			for _, o := range []metav1.Object{pvbuild.NewPV(one, "1Gi"), pvbuild.NewPV(two, "1Gi"), pvbuild.NewClaim(one, "1Gi", hasUID("one")), pvbuild.NewClaim(two, "1Gi", hasUID("two"))} {
				if _, err := r.Create(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			r = openRecords(t, dir)
			if a, b := pvbuild.GetClaim(t, r, one), pvbuild.GetClaim(t, r, two); a.UID != "one" || b.UID != "two" {
				t.Errorf("their UIDs are %s and %s", a.UID, b.UID)
			}
			r.Close()
			files, err := filepath.Glob(filepath.Join(dir, "volume~*"))
			if err != nil || len(files) != 2 {
				t.Fatal(files, err)
			}
			if err := os.Rename(files[0], files[1]); err != nil {
				t.Fatal(err)
			}
			_, err = persisted.Open(t.Context(), objects.NewStore(), dir)
			if damaged, ok := errors.AsType[*persisted.DamagedError](err); !ok || damaged.Path != files[1] {
				t.Errorf("a record under another volume's name: err = %v", err)
			}
		})
	}
}

// Whoever reads while others write finds each object whole.
func TestReadWhileOthersWrite(t *testing.T) {
	if claims, volumes, err := persisted.Read(filepath.Join(t.TempDir(), "missing")); len(claims)+len(volumes) > 0 || err != nil {
		t.Errorf("%v, %v, %v", claims, volumes, err)
	}
	dir := pvbuild.MemoryDir(t)
	r := openRecords(t, dir)
	defer r.Close()
	var writers sync.WaitGroup
	for w := range 4 {
		writers.Go(func() {
			for range 100 {
				name := fmt.Sprintf("c%d", w)
				_, err := r.Create(t.Context(), pvbuild.NewClaim(name, "1Gi"))
				if err := errors.Join(err, r.Delete(t.Context(), pvbuild.ClaimRef(name), objects.Preconditions{})); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		if _, _, err := persisted.Read(dir); err != nil {
			t.Error(err)
		}
	}
}

func TestARefusedWriteLeavesTheRecord(t *testing.T) {
	dir := t.TempDir()
	r, err := persisted.Open(t.Context(), objects.NewStore(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Create(t.Context(), pvbuild.NewPV("pv", "1Gi")); err != nil {
		t.Fatal(err)
	}
	pv := pvbuild.GetPV(t, r, "pv").DeepCopy()
	pvbuild.ForClaim("data", "1")(pv)
	if _, err := r.Update(t.Context(), pv); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(filepath.Join(dir, "volume~pv.json"))
	if err != nil {
		t.Fatal(err)
	}
	pvbuild.ForClaim("thief", "2")(pv) // at a version that is not the stored one any more
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
	pv = pvbuild.GetPV(t, r, "pv").DeepCopy()
	pv.Spec.ClaimRef = nil
	if _, err := r.Update(t.Context(), pv); err == nil || pvbuild.GetPV(t, r, "pv").Spec.ClaimRef == nil {
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
		w := newForgetfulWorld(t, pvbuild.MemoryDir(t), storageClass("fast", made),
			pvbuild.NewPV("small", "1Gi"), pvbuild.NewPV("large", "3Gi"), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")), pvbuild.NewClaim("short", "1Gi", pvbuild.OfClass("fast")), pvbuild.NewClaim("static", "1Gi"))
		w.afterStart = func() {
			time.Sleep(time.Minute)
			_ = w.api.Delete(t.Context(), volume.NewObjectRef("PersistentVolumeClaim", "ops", "short"), objects.Preconditions{})
		}
		return w
	}, func(w *world) {
		w.afterStart = nil
		w.manifests = slices.DeleteFunc(w.manifests, func(o metav1.Object) bool { return o.GetName() == "short" })
		w.manifests = append(w.manifests, pvbuild.NewClaim("rival", "1Gi"))
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

// A disk that fails for a moment costs a try, and never leaves another record
// than what is shown.
func TestRecordsSurviveAFailureOfTheDisk(t *testing.T) {
	for _, mode := range []string{"full", "uncertain"} {
		hit := true
		n := 1
		for ; hit; n++ {
			synctest.Test(t, func(t *testing.T) {
				w := newForgetfulWorld(t, pvbuild.MemoryDir(t), storageClass("fast", made), pvbuild.NewPV("static", "1Gi"),
					pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")), pvbuild.NewClaim("short", "1Gi", pvbuild.OfClass("fast")), pvbuild.NewClaim("static", "1Gi"))
				w.diskAt, w.diskMode = n, mode
				w.start()
				w.settle()
				ref := volume.NewObjectRef("PersistentVolumeClaim", "ops", "short")
				if err := w.api.Delete(t.Context(), ref, objects.Preconditions{}); errors.Is(err, errFull) {
					if err := errors.Join(w.compareRecords(), w.api.Delete(t.Context(), ref, objects.Preconditions{})); err != nil {
						t.Error(err)
					}
				}
				w.settle()
				hit = w.diskHit.Load()
				w.stop()
				w.manifests = slices.DeleteFunc(w.manifests, func(o metav1.Object) bool { return o.GetName() == "short" })
				w.start() // which applies what was refused
				w.settle()
				w.wantBound("data", "pvc-uid-data")
				w.wantBound("static", "static")
				w.wantGone("PersistentVolume", "", "pvc-uid-short")
				if left := w.stored(); !slices.Equal(left, []string{"pvc-uid-data"}) {
					t.Errorf("storage %v exists", left)
				}
			})
			if t.Failed() {
				t.Fatalf("change %d of the disk, %s", n, mode)
			}
		}
		if n < 20 {
			t.Fatalf("only %d changes were made", n)
		}
	}
}
