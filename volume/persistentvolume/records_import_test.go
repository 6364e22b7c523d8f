package persistentvolume_test

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// bound writes an entry as versions without records have written it.
func bound(t *testing.T, ledger, pv, claim string, uid types.UID) string {
	t.Helper()
	path := filepath.Join(ledger, pv+".json")
	text := fmt.Sprintf(`{"schemaVersion":1,"volume":%q,"namespace":"ops","name":%q,"uid":%q,"time":"2026-05-04T03:02:01.123456789Z"}`+"\n", pv, claim, uid)
	if err := errors.Join(os.MkdirAll(ledger, 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

func derived(claim string) types.UID {
	return objects.DerivedUID("PersistentVolumeClaim", "ops", claim)
}

func unnamed(c *v1.PersistentVolumeClaim) { c.UID = "" }

func hasUID(uid types.UID) claimOption {
	return func(c *v1.PersistentVolumeClaim) { c.UID = uid }
}

// newUpgradedWorld is one that an earlier version has left a ledger for.
func newUpgradedWorld(t *testing.T, manifests ...metav1.Object) *world {
	dir := memoryDir(t)
	w := newForgetfulWorld(t, filepath.Join(dir, "claims"), manifests...)
	w.ledger = filepath.Join(dir, "bindings")
	return w
}

func (w *world) wantEntries(names ...string) {
	w.t.Helper()
	paths, err := filepath.Glob(filepath.Join(w.ledger, "[a-z0-9]*.json"))
	if err != nil {
		w.t.Fatal(err)
	}
	if len(paths) != len(names) {
		w.t.Errorf("entries %v, want those of %v", paths, names)
		return
	}
	for i, path := range paths {
		if filepath.Base(path) != names[i]+".json" {
			w.t.Errorf("entries %v, want those of %v", paths, names)
		}
	}
}

// A version without records reads every file of the ledger, and starts with none
// that it does not understand: it would bind anew what has moved.
func TestAnEarlierVersionRefusesALedgerThatHasMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUpgradedWorld(t, newPV("a", "1Gi"), newClaim("data", "1Gi", unnamed))
		bound(t, w.ledger, "a", "data", derived("data"))
		for range 2 {
			w.start()
			w.settle()
			w.wantBound("data", "a")
			w.wantEntries()
			w.stop()
			paths, err := filepath.Glob(filepath.Join(w.ledger, "*.json"))
			if err != nil || len(paths) != 1 {
				t.Fatalf("the ledger has %v, %v", paths, err)
			}
			var file struct {
				SchemaVersion int    `json:"schemaVersion"`
				MovedTo       string `json:"movedTo"`
			}
			text, err := os.ReadFile(paths[0])
			if err := errors.Join(err, json.Unmarshal(text, &file)); err != nil {
				t.Fatal(err)
			}
			if file.SchemaVersion == 1 || file.MovedTo != w.records {
				t.Errorf("%s: %s", paths[0], text)
			}
		}
	})
}

func TestAClaimKeepsTheVolumeOfAnEarlierVersion(t *testing.T) {
	for name, manifests := range map[string][]metav1.Object{
		"volumes first": {newPV("a", "2Gi"), newPV("b", "1Gi"), newClaim("data", "1Gi", unnamed), newClaim("other", "1Gi")},
		"claims first":  {newClaim("other", "1Gi"), newClaim("data", "1Gi", unnamed), newPV("b", "1Gi"), newPV("a", "2Gi")},
		"pre-bound":     {newPV("a", "2Gi", forClaim("data", "")), newPV("b", "1Gi"), newClaim("data", "1Gi", unnamed, naming("a")), newClaim("other", "1Gi")},
		"with its UID":  {newPV("a", "2Gi"), newPV("b", "1Gi"), newClaim("data", "1Gi", hasUID(derived("data"))), newClaim("other", "1Gi")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newUpgradedWorld(t, manifests...)
				bound(t, w.ledger, "a", "data", derived("data"))
				for range 2 {
					w.start()
					w.settle()
					w.wantBound("data", "a")
					w.wantBound("other", "b")
					if got := w.claim("data").UID; got != derived("data") {
						t.Errorf("its UID is %s", got)
					}
					if _, awaits := w.pv("a").Annotations[persistentvolume.AwaitsClaimAnnotation]; awaits {
						t.Error("the volume waits for the claim that it has")
					}
					w.wantEntries()
					w.stop()
				}
			})
		})
	}
}

// Until its claim is created, and be that never, nobody gets the volume, and
// what was not declared was not deleted.
func TestAVolumeWaitsForTheClaimOfAnEarlierVersion(t *testing.T) {
	for _, policy := range []v1.PersistentVolumeReclaimPolicy{v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle, v1.PersistentVolumeReclaimRetain} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newUpgradedWorld(t, newPV("a", "1Gi", withPolicy(policy)), newClaim("other", "1Gi"), newClaim("thief", "1Gi", naming("a")))
				bound(t, w.ledger, "a", "data", derived("data"))
				for range 2 {
					w.start()
					w.settle()
					w.wantPV("a", v1.VolumeAvailable)
					w.wantClaim("other", v1.ClaimPending)
					w.wantClaim("thief", v1.ClaimPending)
					if w.storage.calls > 0 {
						t.Error("the volume was reclaimed")
					}
					w.wantEntries("a")
					w.stop()
				}
				// Not even by a phase that somebody else has written.
				w.start()
				released := w.pv("a").DeepCopy()
				released.Status.Phase = v1.VolumeReleased
				verifier := &persistentvolume.ReleaseVerifier{Objects: storeOf(t, unversioned(released)), Plugins: w.config.Plugins}
				if err := verifier.VerifyReleased(t.Context(), released); !errors.As(err, new(*persistentvolume.NotReleasedError)) && policy != v1.PersistentVolumeReclaimRetain {
					t.Errorf("err = %v", err)
				}
				w.create(newClaim("data", "1Gi", unnamed))
				w.settle()
				w.wantBound("data", "a")
				w.wantEntries()
				// From now on it is a claim like every other.
				w.delete("PersistentVolumeClaim", "ops", "thief")
				w.delete("PersistentVolumeClaim", "ops", "data")
				w.settle()
				switch policy {
				case v1.PersistentVolumeReclaimDelete:
					w.wantGone("PersistentVolume", "", "a")
				case v1.PersistentVolumeReclaimRecycle:
					w.wantBound("other", "a")
				default:
					w.wantPV("a", v1.VolumeReleased)
				}
			})
		})
	}
}

func unversioned(pv *v1.PersistentVolume) *v1.PersistentVolume {
	pv = pv.DeepCopy()
	pv.ResourceVersion = ""
	return pv
}

// The name of a volume that nobody declares stays that claim's.
func TestAVolumeIsDeclaredLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUpgradedWorld(t, newPV("b", "1Gi"), newClaim("data", "1Gi", unnamed))
		bound(t, w.ledger, "a", "data", derived("data"))
		w.start()
		w.settle()
		w.wantClaim("data", v1.ClaimPending)
		w.events.want(t, "data: Normal FailedBinding volume \"a\"")
		w.wantEntries("a")
		w.stop()
		w.manifests = append(w.manifests, newClaim("other", "1Gi"))
		w.start()
		w.settle()
		w.wantBound("other", "b")
		w.create(newClaim("third", "1Gi"))
		w.settle()
		w.create(newPV("a", "1Gi"))
		w.settle()
		w.wantBound("data", "a")
		w.wantClaim("third", v1.ClaimPending)
		w.wantEntries()
	})
}

// A claim that was deleted is another one when it comes again.
func TestADeletedClaimHasNoVolumeOfAnEarlierVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUpgradedWorld(t, newClaim("data", "1Gi", unnamed))
		bound(t, w.ledger, "a", "data", derived("data"))
		w.start()
		w.settle()
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantGone("PersistentVolumeClaim", "ops", "data")
		w.stop()
		w.start() // which declares it again
		w.settle()
		if c := w.claim("data"); c.UID == derived("data") || c.Spec.VolumeName != "" {
			t.Errorf("the next claim is %s and has volume %q", c.UID, c.Spec.VolumeName)
		}
		w.wantEntries("a")
		w.create(newPV("a", "1Gi"))
		w.settle()
		w.wantPV("a", v1.VolumeReleased)
		w.wantClaim("data", v1.ClaimPending)
		w.wantEntries()
	})
}

// Who takes the claimRef away says that nobody needs what the claim has there.
func TestAVolumeOfAnEarlierVersionIsReleasedByHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUpgradedWorld(t, newPV("a", "1Gi"), newClaim("other", "1Gi"))
		bound(t, w.ledger, "a", "data", derived("data"))
		w.start()
		w.settle()
		w.change("a", func(pv *v1.PersistentVolume) { metav1.SetMetaDataAnnotation(&pv.ObjectMeta, "x", "y") })
		w.change("a", func(pv *v1.PersistentVolume) { delete(pv.Annotations, persistentvolume.AwaitsClaimAnnotation) })
		w.settle()
		w.wantPV("a", v1.VolumeAvailable)
		w.wantEntries("a")
		w.change("a", func(pv *v1.PersistentVolume) { pv.Spec.ClaimRef = nil })
		w.settle()
		w.wantBound("other", "a")
		w.wantEntries()
	})
}

// What an earlier version has bound and what is declared or recorded by now
// must not contradict each other.
func TestConflictsWithTheLedger(t *testing.T) {
	open := func(t *testing.T, dir string) (*persistentvolume.RecordedObjects, error) {
		r, err := persistentvolume.OpenRecords(t.Context(), objects.NewStore(), dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r, r.ImportLedger(t.Context(), filepath.Join(dir, "bindings"))
	}
	for name, object := range map[string]metav1.Object{
		"a volume for another claim":     newPV("a", "1Gi", forClaim("other", "")),
		"a volume for a later claim":     newPV("a", "1Gi", forClaim("data", "another")),
		"a claim that names another":     newClaim("data", "1Gi", unnamed, naming("b")),
		"the claim that names another":   newClaim("data", "1Gi", hasUID(derived("data")), naming("b")),
		"a claim that may be either one": newClaim("twice", "1Gi", unnamed),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			entry := bound(t, filepath.Join(dir, "bindings"), "a", "data", derived("data"))
			if object.GetName() == "twice" {
				entry = bound(t, filepath.Join(dir, "bindings"), "t1", "twice", "one")
				bound(t, filepath.Join(dir, "bindings"), "t2", "twice", "two")
			}
			r, err := open(t, dir)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Create(t.Context(), object); !errors.Is(err, volume.ErrBoundElsewhere) || !strings.Contains(err.Error(), entry) {
				t.Errorf("err = %v, want one that names %s", err, entry)
			}
			if claims, volumes, err := persistentvolume.ReadRecords(dir); len(claims)+len(volumes) > 0 || err != nil {
				t.Errorf("%v and %v were recorded, %v", claims, volumes, err)
			}
		})
	}
	// An earlier version that was used once more, after records had been made.
	for name, object := range map[string]metav1.Object{
		"a volume that another claim has": newPV("a", "1Gi", forClaim("other", "uid-other")),
		"a claim that has another volume": newClaim("data", "1Gi", hasUID(derived("data")), naming("b")),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			r, err := open(t, dir)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			entry := bound(t, filepath.Join(dir, "bindings"), "a", "data", derived("data"))
			if _, err := open(t, dir); !errors.Is(err, volume.ErrBoundElsewhere) || !strings.Contains(err.Error(), entry) {
				t.Errorf("err = %v, want one that names %s", err, entry)
			}
		})
	}
	t.Run("a free volume that is recorded", func(t *testing.T) {
		dir := t.TempDir()
		r, err := open(t, dir)
		if err != nil {
			t.Fatal(err)
		}
		_, err = r.Create(t.Context(), newPV("a", "1Gi"))
		if err := errors.Join(err, r.Close()); err != nil {
			t.Fatal(err)
		}
		bound(t, filepath.Join(dir, "bindings"), "a", "data", derived("data"))
		if r, err = open(t, dir); err != nil {
			t.Fatal(err)
		}
		if ref := getPV(t, r, "a").Spec.ClaimRef; ref == nil || ref.UID != derived("data") {
			t.Errorf("its claimRef is %v", ref)
		}
	})
}

// A claim with another UID is another claim, whose volume is another one.
func TestAnotherClaimOfTheNameInTheLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newUpgradedWorld(t, newPV("a", "1Gi"), newPV("b", "2Gi"), newClaim("data", "1Gi", hasUID("another")))
		bound(t, w.ledger, "a", "data", derived("data"))
		w.start()
		w.settle()
		w.wantBound("data", "b")
		w.wantPV("a", v1.VolumeAvailable)
		w.wantEntries("a")
	})
}

func TestADamagedLedgerStopsEverything(t *testing.T) {
	for name, content := range map[string]string{
		"cut off": `{"schemaVersion":1,"vol`, "of another version": `{"schemaVersion":2,"volume":"a","name":"data","uid":"1"}`,
		"about nothing": `{"schemaVersion":1,"volume":"a"}`, "about another volume": `{"schemaVersion":1,"volume":"b","name":"data","uid":"1"}`,
		"about the claim of another": `{"schemaVersion":1,"volume":"a","namespace":"ops","name":"data","uid":"uid"}`,
	} {
		t.Run(name, func(t *testing.T) {
			ledger := t.TempDir()
			first := bound(t, ledger, "0", "data", "uid")
			path := filepath.Join(ledger, "a.json")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			r, err := persistentvolume.OpenRecords(t.Context(), objects.NewStore(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			err = r.ImportLedger(t.Context(), ledger)
			if damaged, ok := errors.AsType[*persistentvolume.DamagedRecordError](err); !ok || damaged.Path != path {
				t.Errorf("err = %v, want one about %s", err, path)
			}
			if name == "about the claim of another" && (err == nil || !strings.Contains(err.Error(), first)) {
				t.Errorf("err = %v, want one that names %s too", err, first)
			}
		})
	}
}

// A volume's name may be longer than there is room for in a file's.
func TestALedgerWithLongNames(t *testing.T) {
	dir := t.TempDir()
	ledger, long := filepath.Join(dir, "bindings"), strings.Repeat("x", 253)
	path := bound(t, ledger, "short", "data", derived("data"))
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	digest := fmt.Sprintf("~%x.json", sha256.Sum256([]byte(long)))
	longPath := filepath.Join(ledger, long[:255-len(digest)]+digest)
	if err := errors.Join(os.WriteFile(longPath, []byte(strings.Replace(string(text), `"short"`, `"`+long+`"`, 1)), 0o600), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	r := openRecords(t, filepath.Join(dir, "claims"))
	defer r.Close()
	err = r.ImportLedger(t.Context(), ledger)
	_, pvErr := r.Create(t.Context(), newPV(long, "1Gi"))
	_, claimErr := r.Create(t.Context(), newClaim("data", "1Gi", unnamed))
	if err := errors.Join(err, pvErr, claimErr); err != nil {
		t.Fatal(err)
	}
	if c := getClaim(t, r, "data"); c.UID != derived("data") || c.Spec.VolumeName != long {
		t.Errorf("the claim is %s and has volume %q", c.UID, c.Spec.VolumeName)
	}
	if _, err := os.Stat(longPath); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the entry is left: %v", err)
	}
}

// Whatever step of the import the process dies at, the next one goes on.
func TestTheImportSurvivesACrashAtEveryStep(t *testing.T) {
	prepare := func(t *testing.T) *world {
		w := newUpgradedWorld(t, newPV("a", "3Gi"), newPV("free", "1Gi"), newClaim("data", "1Gi", unnamed), newClaim("late", "1Gi", unnamed), newPV("waits", "1Gi"), newClaim("other", "1Gi"))
		bound(t, w.ledger, "a", "data", derived("data"))
		bound(t, w.ledger, "missing", "late", derived("late"))
		bound(t, w.ledger, "waits", "nobody", derived("nobody"))
		return w
	}
	meanwhile := func(w *world) { w.manifests = append(w.manifests, newPV("missing", "1Gi")) }
	check := func(w *world) {
		w.wantBound("data", "a")
		w.wantBound("late", "missing")
		w.wantBound("other", "free")
		w.wantPV("waits", v1.VolumeAvailable)
		w.wantEntries("waits")
	}
	t.Run("calls", func(t *testing.T) { sweepCrashes(t, 20, prepare, meanwhile, check) })
	t.Run("disk", func(t *testing.T) { sweepDiskCrashes(t, 20, prepare, meanwhile, check) })
}
