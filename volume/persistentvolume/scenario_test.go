package persistentvolume_test

import (
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
)

// What a person has in a file is bound so that a node accepts it, and again
// after the program was started anew.
func TestManifestsAreBound(t *testing.T) {
	for file, want := range map[string]string{"nfs211.yaml": "nfs211", "nfs-web.yaml": "nfs", "all-types.yaml": "all-types"} {
		t.Run(file, func(t *testing.T) {
			dir := t.TempDir()
			for range 2 {
				set, err := manifest.Load(filepath.Join("../../testdata", file))
				if err != nil {
					t.Fatal(err)
				}
				b := binder(set, dir)
				b.NodeName = set.NodeName
				if err := b.BindPods(t.Context(), set.Pods()); err != nil {
					t.Fatal(err)
				}
				claims, err := objects.List[*v1.PersistentVolumeClaim](t.Context(), set, "PersistentVolumeClaim", "")
				if err != nil || len(claims) != 1 {
					t.Fatalf("%d claims, err %v", len(claims), err)
				}
				if err := volume.CheckBinding(claims[0], getPV(t, set, want)); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
