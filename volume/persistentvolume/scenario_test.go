package persistentvolume_test

import (
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
)

// What a person has in a file is bound so that a node accepts it, and still is
// after the program was started anew.
func TestManifestsAreBound(t *testing.T) {
	for file, want := range map[string]string{"nfs211.yaml": "nfs211", "nfs-web.yaml": "nfs", "all-types.yaml": "all-types"} {
		t.Run(file, func(t *testing.T) {
			set, err := manifest.Load(filepath.Join("../../testdata", file))
			if err != nil {
				t.Fatal(err)
			}
			dir := pvbuild.MemoryDir(t)
			r := openRecords(t, dir)
			for _, kind := range []string{"StorageClass", "PersistentVolume", "PersistentVolumeClaim"} {
				list, err := set.List(t.Context(), kind, metav1.NamespaceAll)
				if err != nil {
					t.Fatal(err)
				}
				for _, o := range list {
					declared := o.(runtime.Object).DeepCopyObject().(metav1.Object)
					declared.SetResourceVersion("")
					if _, err := r.Create(t.Context(), declared); err != nil {
						t.Fatal(err)
					}
				}
			}
			bindRecorded(t, r)
			for range 2 {
				claims, err := objects.List[*v1.PersistentVolumeClaim](t.Context(), r, "PersistentVolumeClaim", "")
				if err != nil || len(claims) != 1 {
					t.Fatalf("%d claims, err %v", len(claims), err)
				}
				if err := claimbinding.Check(claims[0], pvbuild.GetPV(t, r, want)); err != nil {
					t.Error(err)
				}
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
				r = openRecords(t, dir)
			}
			r.Close()
		})
	}
}
