package clusterhost_test

import (
	"context"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/volumemanager"
)

func (n *realNode) status() v1.NodeStatus {
	node, err := n.admin.CoreV1().Nodes().Get(context.Background(), "node1", metav1.GetOptions{})
	if err != nil {
		n.t.Error(err)
		return v1.NodeStatus{}
	}
	return node.Status
}

// A whole node reports under its own identity; its disk is mounted once a
// controller has attached it, and not before the API lists it in use.
func reportsOfANode(t *testing.T, n *realNode) {
	disks := newDisks()
	disks.mounting = func(disk string) {
		if s := n.status(); !slices.Contains(s.VolumesInUse, unique(disk)) || !isAttached(s, disk) {
			t.Errorf("disk %s is mounted, but in use are %v, attached %v", disk, s.VolumesInUse, s.VolumesAttached)
		}
	}
	stale, err := n.admin.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
	must(t, err)
	stale.Status.VolumesInUse = []v1.UniqueVolumeName{unique("stale")}
	stale, err = n.admin.CoreV1().Nodes().UpdateStatus(t.Context(), stale, metav1.UpdateOptions{})
	must(t, err)
	source := n.source()
	manager, _ := n.run(volumemanager.Config{Objects: source, Plugins: []volume.VolumePlugin{disks}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- clusterhost.ReportVolumes(ctx, n.clientset, source, "node1", manager, clusterhost.ReportConfig{})
	}()
	defer func() {
		cancel()
		must(t, <-ended)
	}()

	pod := diskPod("one", "a")
	must(t, manager.PutPod(pod))
	until(t, "the disk is reported", func() bool { return slices.Contains(n.status().VolumesInUse, unique("a")) })
	if disks.isUsed("a") {
		t.Error("it is mounted before it is attached")
	}
	node, err := n.admin.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
	must(t, err)
	if fence := node.Annotations[clusterhost.FenceAnnotation]; fence == "" || fence == stale.Annotations[clusterhost.FenceAnnotation] {
		t.Errorf("the reports of earlier processes were not ruled out: %s is %q", clusterhost.FenceAnnotation, fence)
	}
	node.Status.VolumesAttached = []v1.AttachedVolume{{Name: unique("a"), DevicePath: "/dev/a"}}
	_, err = n.admin.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
	must(t, err)
	must(t, manager.WaitForMounted(t.Context(), pod.UID))
	must(t, manager.TearDownPod(t.Context(), pod.UID))
	until(t, "the disk is not in use any more", func() bool { return len(n.status().VolumesInUse) == 0 })
	if disks.isUsed("a") {
		t.Error("it is mounted, but not listed any more")
	}
	if !isAttached(n.status(), "a") {
		t.Error("what is attached was taken off the status")
	}
}
