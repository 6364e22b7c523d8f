package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const staticManifest = `
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop, labels: {colour: blue}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: main
    image: none
    command: [/bin/sh, -c, "sleep 1000"]
    volumeMounts: [{name: memory, mountPath: /volumes/memory}]
  volumes: [{name: memory, emptyDir: {medium: Memory}}]
`

// A pod of the directory of manifests runs without the API server, which has a mirror of
// it. Another version of it is another pod, and a removed file ends it.
func TestStaticPods(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	w.config.manifests = t.TempDir()
	file := filepath.Join(w.config.manifests, "web.yaml")
	write := func(manifest string) {
		t.Helper()
		if err := os.WriteFile(file+".new", []byte(manifest), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	write(staticManifest)
	other := pod("other", "", memoryVolume("memory")) // so that the directory is not all that there is
	w.create(other)
	w.start()
	mirror := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-node1"}}
	w.phase(mirror, v1.PodRunning)
	first := w.get(mirror)
	hash := first.Annotations[v1.MirrorPodAnnotationKey]
	if len(hash) != 32 || first.OwnerReferences[0].Name != "node1" || first.Labels["colour"] != "blue" || len(w.mounted()) != 2 {
		t.Errorf("the mirror is %v with %v; mounted: %v", first.ObjectMeta, first.Spec, w.mounted())
	}
	w.phase(other, v1.PodRunning)

	w.delete(first)
	w.eventually("the mirror is made again", func() bool {
		p := w.get(mirror)
		return p != nil && p.DeletionTimestamp == nil && p.Status.Phase == v1.PodRunning
	})
	if m := w.mounted(); len(m) != 2 {
		t.Errorf("after the mirror was deleted: %v", m)
	}

	w.stop()
	stale := w.get(mirror).DeepCopy()
	stale.Status.Phase = v1.PodUnknown // until the new start says otherwise
	if _, err := w.api.CoreV1().Pods(stale.Namespace).UpdateStatus(t.Context(), stale, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.eventually("it is mirrored as before", func() bool {
		p := w.get(mirror)
		return p != nil && p.Annotations[v1.MirrorPodAnnotationKey] == hash && p.Status.Phase == v1.PodRunning && len(w.mounted()) == 2
	})
	write(strings.Replace(staticManifest, "blue", "red", 1))
	w.eventually("another version is another pod", func() bool {
		p := w.get(mirror)
		return p != nil && p.Labels["colour"] == "red" && p.Annotations[v1.MirrorPodAnnotationKey] != hash && p.Status.Phase == v1.PodRunning && len(w.mounted()) == 2
	})
	if err := os.WriteFile(filepath.Join(w.config.manifests, "second.yaml"), []byte(strings.Replace(staticManifest, "name: web", "name: second", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.phase(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "second-node1"}}, v1.PodRunning)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	w.eventually("it ends with its file", func() bool { return w.get(mirror) == nil && len(w.mounted()) == 2 })
}
