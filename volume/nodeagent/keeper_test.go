package nodeagent

import (
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Whatever a node refuses a pod for, it gets all others, and is not told that it
// knows every pod.
func TestKeeperGoesOnAfterARefusedPod(t *testing.T) {
	leaks(t)
	store := objects.NewStore()
	config := standalone.NodeConfig{RootDir: filepath.Join(t.TempDir(), "root"), NodeName: "here", Objects: store, Mounter: fakemount.New()}
	node, err := standalone.StartNode(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := node.Stop(); err != nil {
			t.Error(err)
		}
	}()
	claims, err := openClaims(t.Context(), standalone.ClaimsConfig{
		RootDir: config.RootDir, Node: config, Store: store, Mounted: standalone.MountedOn(node.Manager), Logger: slog.New(slog.DiscardHandler)}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := claims.stop(); err != nil {
			t.Error(err)
		}
	}()
	var said []string
	k := newKeeper(node.Manager, claims, func(volumemanager.VolumeStatus) {}, func(text string) { said = append(said, text) }, nil)
	pods := make(map[volume.ObjectRef]*v1.Pod)
	for _, name := range []string{"a", "b", "c"} {
		pod := &v1.Pod{Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}}}
		pod.Namespace, pod.Name, pod.UID = "shop", name, types.UID("uid-"+name)
		pods[volume.NewObjectRef("Pod", "shop", name)] = pod
	}
	bad := pods[volume.NewObjectRef("Pod", "shop", "b")]
	bad.Spec.Volumes[0].HostPath = &v1.HostPathVolumeSource{Path: "/etc"} // besides
	for range 2 {
		if _, err := k.apply(t.Context(), &manifestdir.Contents{Pods: pods}); err != nil {
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
	if _, err := k.apply(t.Context(), &manifestdir.Contents{Pods: pods}); err != nil || len(k.undeclared()) > 0 {
		t.Errorf("without the pod: %v, undeclared: %v", err, k.undeclared())
	}
}

func leaks(t *testing.T) {
	before := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if err := noleak.Find(before); err != nil {
			t.Error(err)
		}
	})
}
