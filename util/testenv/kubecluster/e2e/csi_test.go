package main

import (
	"slices"
	"testing"
	"testing/fstest"
)

// Images have all the names by which manifests ask for them, each once.
func TestNamesInManifests(t *testing.T) {
	manifest := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	names, err := namesInManifests(fstest.MapFS{
		"hostpath/hostpath/plugin.yaml": manifest("- name: a\n  image: registry.k8s.io/sig-storage/csi-a:v1.0.0\n  args: []\n- image: registry.k8s.io/sig-storage/b:v2.0.0\n"),
		"mock/driver.yaml":              manifest("image: registry.k8s.io/sig-storage/csi-a:v1.0.0\nimage: registry.k8s.io/sig-storage/csi-a:v1.1.0\nimage: registry.k8s.io/other/c:v1\n"),
		"gce-pd/driver.yaml":            manifest("image: registry.k8s.io/sig-storage/csi-d:v1.0.0\n"),
	})
	if err != nil {
		t.Fatal(err)
	}
	const prefix = "registry.k8s.io/sig-storage/"
	want := map[string][]string{"csi-a": {prefix + "csi-a:v1.0.0", prefix + "csi-a:v1.1.0"}, "b": {prefix + "b:v2.0.0"}}
	if len(names) != len(want) {
		t.Errorf("names %v", names)
	}
	for repository, want := range want {
		if !slices.Equal(names[repository], want) {
			t.Errorf("%s has the names %v", repository, names[repository])
		}
	}
	if _, err := namesInManifests(fstest.MapFS{}); err == nil {
		t.Error("no error without manifests")
	}
}
