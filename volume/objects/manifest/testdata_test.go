package manifest_test

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
)

const testdata = "../../../testdata"

func load(t *testing.T, name string) *manifest.Set {
	t.Helper()
	set, err := manifest.Loader{}.Load(filepath.Join(testdata, name))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func TestEveryManifestOfTestdataLoads(t *testing.T) {
	pods := map[string]int{
		"nfs211.yaml": 2, "redis-nfs.yaml": 1, "nfs-web.yaml": 2, "nfs-shared.yaml": 3, "ephemeral.yaml": 1,
		"nested.yaml": 1, "container-mounts.yaml": 1, "all-types.yaml": 30, "web.yaml": 1, "glusterfs.yaml": 1,
		"claims/local.yaml": 2, "claims/dynamic.yaml": 1, "claims/statefulset.yaml": 2,
	}
	files, err := filepath.Glob(filepath.Join(testdata, "*.yaml"))
	claims, claimsErr := filepath.Glob(filepath.Join(testdata, "claims", "*.yaml"))
	files = append(files, claims...)
	if err != nil || claimsErr != nil || len(files) < len(pods) {
		t.Fatalf("found %d manifests, err %v, %v", len(files), err, claimsErr)
	}
	for _, file := range files {
		name, err := filepath.Rel(testdata, file)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(name, func(t *testing.T) {
			set := load(t, name)
			if want, known := pods[name]; known && len(set.Pods()) != want {
				t.Errorf("%d pods, want %d", len(set.Pods()), want)
			}
			if len(set.Pods()) == 0 || len(set.Skipped) > 0 {
				t.Errorf("%d pods, skipped %v", len(set.Pods()), set.Skipped)
			}
		})
	}
}

func TestNFSThroughAClaim(t *testing.T) {
	set := load(t, "nfs211.yaml")
	if set.NodeName != "node1" {
		t.Errorf("node %q, want the one that the pods name", set.NodeName)
	}
	pv, err := objects.Get[*v1.PersistentVolume](t.Context(), set, volume.NewObjectRef("PersistentVolume", "", "nfs211"))
	if err != nil || pv.Spec.NFS.Server != "10.20.172.211" || pv.Spec.NFS.Path != "/nfs" {
		t.Errorf("PersistentVolume %v, err %v", pv, err)
	}
}

func TestAllTypesAreAllThatTheAPIHas(t *testing.T) {
	var want, got []string
	for f := range reflect.TypeFor[v1.VolumeSource]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		want = append(want, name)
	}
	for _, pod := range load(t, "all-types.yaml").Pods() {
		for i := range pod.Spec.Volumes {
			got = append(got, volume.SourceTypes(volume.NewSpecFromVolume(&pod.Spec.Volumes[i]))...)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		t.Errorf("the manifest has %v, the API %v", got, want)
	}
}

func TestWebNeedsNothingButThisMachine(t *testing.T) {
	pod := load(t, "web.yaml").Pods()[0]
	types := make(map[string]bool)
	for i := range pod.Spec.Volumes {
		for _, sourceType := range volume.SourceTypes(volume.NewSpecFromVolume(&pod.Spec.Volumes[i])) {
			types[sourceType] = true
		}
	}
	for _, need := range []string{"emptyDir", "hostPath", "configMap", "secret", "downwardAPI", "projected"} {
		if !types[need] {
			t.Errorf("no volume of type %s", need)
		}
		delete(types, need)
	}
	if len(pod.Spec.Volumes) < 7 || len(types) > 0 {
		t.Errorf("%d volumes, others of types %v", len(pod.Spec.Volumes), types)
	}
}
