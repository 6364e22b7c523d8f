package main

import (
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// withNFSOptions adds to a pod's manifest that a volume shall have options.
func withNFSOptions(manifest, volume string) string {
	return strings.Replace(manifest, "namespace: shop}", "namespace: shop, annotations: {mount-options.podvol.io/"+volume+": hard}}", 1)
}

// A pod that a plugin does not understand is a fault of its file, and nothing to
// the other pods; what it has mounted from before stays.
func TestRunNodeIsNotEndedByOnePod(t *testing.T) {
	leaks(t)
	dir, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
	putManifest(t, dir, "bad.yaml", withNFSOptions(podNamed("bad", "{name: v, emptyDir: {}}"), "nosuch"))
	putManifest(t, dir, "good.yaml", podNamed("good", "{name: scratch, emptyDir: {}}"))
	n := runInProcess(t, dir, root, "--fake")
	if line := n.hears("nosuch"); !strings.Contains(line, "bad.yaml") || !strings.Contains(line, "Pod shop/bad") {
		t.Errorf("it said %q", line)
	}
	n.row("scratch", "mounted")
	n.hears("pods: 1, volumes: 1, files refused: 1; pods in no manifest are kept")
	n.put("bad.yaml", podNamed("bad", "{name: v, emptyDir: {}}"))
	n.row("v", "mounted")
	if code := n.stop(); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// Whatever a node refuses a pod for, it gets all others, and is not told that it
// knows every pod.
func TestKeeperGoesOnAfterARefusedPod(t *testing.T) {
	leaks(t)
	where, err := newPlace(filepath.Join(t.TempDir(), "root"), true)
	if err != nil {
		t.Fatal(err)
	}
	defer where.close()
	store := objects.NewStore()
	node, err := startNode(t.Context(), where.config("here", store))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := node.stop(); err != nil {
			t.Error(err)
		}
	}()
	storage, err := openStorage(t.Context(), clusterConfig{
		rootDir: where.rootDir, node: where.config("here", store), store: store, mounted: mountedOn(node.Manager), log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := storage.stop(); err != nil {
			t.Error(err)
		}
	}()
	out, err := newRowStream("json", io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	k := newKeeper(node.Manager, storage, out, func(text string) { said = append(said, text) })
	pods := make(map[volume.ObjectRef]*v1.Pod)
	for _, name := range []string{"a", "b", "c"} {
		pod := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}}}
		pod.Namespace, pod.Name, pod.UID = "shop", name, types.UID("uid-"+name)
		pods[volume.NewObjectRef("Pod", "shop", name)] = pod
	}
	bad := pods[volume.NewObjectRef("Pod", "shop", "b")]
	bad.Spec.Volumes[0].HostPath = &v1.HostPathVolumeSource{Path: "/etc"} // besides
	for range 2 {
		if _, err := k.apply(t.Context(), &contents{pods: pods}); err != nil {
			t.Fatal(err)
		}
	}
	if len(said) != 1 || !strings.Contains(said[0], "pod shop/b is refused") || len(k.undeclared()) != 1 {
		t.Errorf("it said %q, undeclared: %v", said, k.undeclared())
	}
	var known []string
	for _, v := range node.Explain() {
		known = append(known, v.Pod.Name)
	}
	if slices.Sort(known); !slices.Equal(known, []string{"a", "c"}) {
		t.Errorf("the node knows %q", known)
	}
	delete(pods, volume.NewObjectRef("Pod", "shop", "b"))
	if _, err := k.apply(t.Context(), &contents{pods: pods}); err != nil || len(k.undeclared()) > 0 {
		t.Errorf("without the pod: %v, undeclared: %v", err, k.undeclared())
	}
}
