package manifest_test

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
)

// contents returns all objects of a set, without what the store adds.
func contents(t *testing.T, set *manifest.Set) map[volume.ObjectRef]metav1.Object {
	t.Helper()
	all := make(map[volume.ObjectRef]metav1.Object)
	for _, kind := range objects.Kinds() {
		list, err := set.List(t.Context(), kind.Kind, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range list {
			ref := volume.NewObjectRef(kind.Kind, object.GetNamespace(), object.GetName())
			plain := object.(runtime.Object).DeepCopyObject().(metav1.Object)
			plain.SetResourceVersion("")
			plain.SetCreationTimestamp(metav1.Time{})
			all[ref] = plain
		}
	}
	return all
}

// FuzzDecode: decoding never panics, and what is accepted can be written down
// and decoded to the same objects.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(pod))
	f.Add([]byte(workload("apps/v1", "StatefulSet", "db", "replicas: 2\n  volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]")))
	f.Add([]byte(workload("batch/v1", "Job", "j", "parallelism: 3\n  completionMode: Indexed")))
	f.Add([]byte("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: b}\n---\n{\"apiVersion\": \"v1\"}"))
	f.Add([]byte(`[{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"data":{"k":"\u0000"}}]}]`))
	f.Add([]byte("%YAML 1.1\n--- # c\na: &a [*a]\n...\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		loader := manifest.Loader{NodeName: "node1"}
		set, err := loader.Decode("fuzz", data)
		if err != nil {
			if set != nil {
				t.Error("a set beside an error")
			}
			return
		}
		if len(set.Pods()) > 50 {
			return // valid, and too slow to compare
		}
		first := contents(t, set)
		if len(first) == 0 {
			return
		}
		again, err := json.Marshal(slices.Collect(maps.Values(first)))
		if err != nil {
			t.Fatal(err)
		}
		second, err := loader.Decode("again", again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		if got := contents(t, second); !equality.Semantic.DeepEqual(first, got) {
			t.Errorf("%v became %v", first, got)
		}
	})
}
