package persisted_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/util/seal"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/persisted"
)

// Whatever is in a file: either it stops everything, with its name, or it is
// loaded, and found again.
func FuzzRecords(f *testing.F) {
	for _, seed := range []string{
		`{"schemaVersion":2,"claim":{"metadata":{"name":"x","namespace":"ops","uid":"1"},"spec":{"volumeName":"x"},"status":{"phase":"Bound"}}}`,
		`{"schemaVersion":2,"volume":{"metadata":{"name":"x","uid":"1","deletionTimestamp":"2026-01-02T03:04:05Z","finalizers":["a"]}}}`,
		`{"schemaVersion":2,"volume":{"metadata":{"name":"x","namespace":"ops","uid":"1"}}}`,
		`{"schemaVersion":2,"volume":{"metadata":{"name":"x","uid":"1","creationTimestamp":"9999-12-31T23:59:60Z"},"spec":{"capacity":{"storage":"1e999"}}}}`,
		`{"schemaVersion":2,"volume":"x","namespace":"ops","name":"x","uid":"1"}`, `{}`, `null`, `[]`, ``,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, name := range []string{"volume~x.json", "claim~ops~x.json"} {
			dir := t.TempDir()
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, seal.Add(content), 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				r, err := persisted.Open(t.Context(), objects.NewStore(), dir)
				if damaged, ok := errors.AsType[*persisted.DamagedError](err); ok && damaged.Path == path {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				kind := "PersistentVolume"
				if name[0] == 'c' {
					kind = "PersistentVolumeClaim"
				}
				list, err := r.List(t.Context(), kind, "")
				if err != nil || len(list) != 1 || list[0].GetName() != "x" || list[0].GetUID() == "" {
					t.Fatalf("%v were loaded, %v", list, err)
				}
				changed := list[0].(runtime.Object).DeepCopyObject().(metav1.Object)
				changed.SetLabels(map[string]string{"seen": "yes"})
				if _, err := r.Update(t.Context(), changed); err != nil {
					t.Fatal(err)
				}
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
