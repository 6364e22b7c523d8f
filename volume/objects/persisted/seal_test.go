package persisted

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/seal"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// sealedRecords returns the files of a claim and its volume, by name.
func sealedRecords(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	r, err := Open(t.Context(), objects.NewStore(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "data", UID: "1"}, Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv"}}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "2"}, Spec: v1.PersistentVolumeSpec{
		Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}, ClaimRef: &v1.ObjectReference{Namespace: "ops", Name: "data", UID: "1"},
		PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/data"}}}}
	files := make(map[string][]byte)
	for _, object := range []metav1.Object{claim, pv} {
		if _, err := r.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		ref, _ := refOfRecorded(object)
		path := filepath.Join(dir, recordName(ref))
		if files[path], err = os.ReadFile(path); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// Whichever bit of a file is another, and wherever it is cut off, that is found.
func TestEveryFlippedBitOfARecordIsFound(t *testing.T) {
	for path, data := range sealedRecords(t, t.TempDir()) {
		if _, err := parseRecord(path, data); err != nil {
			t.Fatal(err)
		}
		for i := range data {
			for bit := range 8 {
				flipped := append([]byte(nil), data...)
				flipped[i] ^= 1 << bit
				if rec, err := parseRecord(path, flipped); err == nil {
					t.Errorf("%s: bit %d of byte %d is flipped, and %+v believed", filepath.Base(path), bit, i, rec.object())
				}
			}
			if _, err := parseRecord(path, data[:i]); err == nil {
				t.Errorf("%s is cut off after %d of %d bytes, and believed", filepath.Base(path), i, len(data))
			}
		}
	}
}

// A file of an unknown version is damaged, sealed or not: it is never passed over.
func TestRecordsOfUnknownVersionsAreDamaged(t *testing.T) {
	for _, version := range []int{0, 1, 3} {
		line := fmt.Sprintf(`{"schemaVersion":%d,"claim":{"metadata":{"namespace":"ops","name":"data","uid":"1"},"spec":{"volumeName":"pv"},"status":{}}}`+"\n", version)
		for _, content := range []string{line, string(seal.Add([]byte(line)))} {
			dir := t.TempDir()
			path := filepath.Join(dir, "claim~ops~data.json")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := Open(t.Context(), objects.NewStore(), dir)
			if damaged, ok := errors.AsType[*DamagedError](err); !ok || damaged.Path != path || !strings.Contains(err.Error(), "restore it, or") {
				t.Errorf("%s: %v", content, err)
			}
			if data, err := os.ReadFile(path); err != nil || string(data) != content {
				t.Errorf("it is changed: %s, %v", data, err)
			}
		}
	}
}

// So is what is wrong with the file of versions, from which an earlier version could
// be given again, or none any more.
func TestEveryFlippedBitOfTheVersionsIsFound(t *testing.T) {
	dir := t.TempDir()
	sealedRecords(t, dir)
	path := filepath.Join(dir, epochFile)
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	wrong := func(data []byte) error {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return Check(dir)
	}
	if err := wrong(sound); err != nil {
		t.Error(err)
	}
	for _, unknown := range []string{`{"schemaVersion":1,"floor":68719476736}`, string(seal.Add([]byte(`{"schemaVersion":1,"floor":68719476736}` + "\n")))} {
		if err := wrong([]byte(unknown)); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "remove it while nothing runs") {
			t.Errorf("of an unknown version: %v", err)
		}
	}
	for i := range sound {
		for bit := range 8 {
			flipped := append([]byte(nil), sound...)
			flipped[i] ^= 1 << bit
			if err := wrong(flipped); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("bit %d of byte %d is flipped: %v", bit, i, err)
			}
		}
		if err := wrong(sound[:i]); err == nil {
			t.Errorf("cut off after %d of %d bytes, and believed", i, len(sound))
		}
	}
}

// Whichever file is lost or damaged, what is wrong is said, of the file that it is
// about; and nothing of a claim that was deleted.
func TestCheckRecordsNamesWhatIsLost(t *testing.T) {
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "2"}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeBound},
		Spec: v1.PersistentVolumeSpec{Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}, ClaimRef: &v1.ObjectReference{Namespace: "ops", Name: "data", UID: "1"},
			PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/data"}}}}
	for name, tc := range map[string]struct {
		change func(t *testing.T, r *Store, claim string) error
		lost   bool
		text   string // empty: nothing is wrong
	}{
		"nothing": {change: func(*testing.T, *Store, string) error { return nil }},
		"the claim's file is lost": {lost: true, text: "ops/data",
			change: func(t *testing.T, r *Store, claim string) error { return os.Remove(claim) }},
		"the claim's file is damaged": {text: "claim~ops~data.json cannot be understood",
			change: func(t *testing.T, r *Store, claim string) error {
				return os.WriteFile(claim, []byte("{"), 0o600)
			}},
		"the claim was deleted": {change: func(t *testing.T, r *Store, claim string) error {
			return r.Delete(t.Context(), volume.NewObjectRef(pvapi.KindClaim, "ops", "data"), objects.Preconditions{})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			sealedRecords(t, dir)
			r, err := Open(t.Context(), objects.NewStore(), dir)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.UpdateStatus(t.Context(), pv); err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(tc.change(t, r, filepath.Join(dir, "claim~ops~data.json")), r.Close()); err != nil {
				t.Fatal(err)
			}
			err = Check(dir)
			lost, isLost := errors.AsType[*LostClaimError](err)
			switch {
			case (err == nil) != (tc.text == "") || err != nil && !strings.Contains(err.Error(), tc.text):
				t.Errorf("err = %v, want %q", err, tc.text)
			case isLost != tc.lost || isLost && (lost.Volume != "pv" || lost.Claim.String() != "ops/data"):
				t.Errorf("%+v of %v", lost, err)
			}
		})
	}
}
