package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/util/testenv/kubecluster"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/attachdetach"
)

// Kubernetes' attach/detach controller attaches, podvol's takes over while pods run, and gives
// back. No disk of a pod that stays is attached or detached again. A pod moves under each, with
// a disk that the other one has attached.
func TestAttachmentsChangeHandsAndBack(t *testing.T) {
	sidecars := os.Getenv(sidecarsVar)
	if sidecars == "" {
		t.Logf("not run: set %s to what testdata/csi/drivers/build sidecars prints", sidecarsVar)
		return
	}
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		config := apiserver.Config{Controllers: true, ManagerFlags: []string{"--controllers=*,-persistentvolume-attach-detach-controller"}}
		apiserver.Run(t, config, func(t *testing.T, s *apiserver.Server) {
			h := &handover{moving: newMoving(t, s, t.TempDir(), []set{{name: "kept", fsType: "ext4", replicas: 3, size: "64Mi"}})}
			h.luns = &luns{disks{t: t, admin: h.admin}}
			h.begin(sidecars)
			h.start = attaching(t, s, h.admin)
			kubernetes := h.startKubernetes()
			h.fill()
			h.useLUNs()
			h.attached = h.attachmentsThatStay()

			kubernetes.Kill()
			h.attaching = h.start()
			h.moveOne("one", "two")
			h.lookAt(h.replica(0), "one", "two")
			h.unchanged()
			h.replaceLUN()

			h.stopOurs()
			h.must(kubernetes.Start())
			h.moveOne("two", "one")
			h.lookAt(h.replica(0), "one", "two", "one")
			h.unchanged()
			h.releaseLUNs()

			kubernetes.Kill()
			h.attaching = h.start()
			h.removeLUNs()
			h.end()
		})
	})
}

// handover is a cluster whose attachments change hands. A third node, which nobody runs, has
// LUNs, for which Kubernetes makes no VolumeAttachments.
type handover struct {
	*moving
	luns     *luns
	attached map[string]types.UID // the VolumeAttachments of pods that stay, by volumes
}

const bare = "bare"

// startKubernetes runs the controller that the cluster's own controller manager does not run.
func (h *handover) startKubernetes() *kubecluster.Process {
	h.t.Helper()
	return h.run("attach-detach", filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kube-controller-manager"), h.dir, []string{"attach-detach", "system:masters"},
		"--controllers=persistentvolume-attach-detach-controller", "--leader-elect=false", "--secure-port=0", "--flex-volume-plugin-dir=flexvolume")
}

// stopOurs has podvol's controller end, as a cluster's administrator does.
func (h *handover) stopOurs() {
	h.t.Helper()
	h.must(h.attaching.cmd.Process.Signal(syscall.SIGTERM))
	_ = h.attaching.cmd.Wait() // its error is how it has ended
}

func (h *handover) replica(i int) *v1.Pod {
	h.t.Helper()
	pod, err := h.pods.Get(fmt.Sprintf("kept-%d", i))
	h.must(err)
	return pod
}

// moveOne moves the first replica.
func (h *handover) moveOne(from, to string) {
	h.t.Helper()
	h.cordon(from, true)
	h.cordon(to, false)
	before := h.readyOn(to)
	h.must(h.admin.CoreV1().Pods("ops").Delete(h.t.Context(), "kept-0", metav1.DeleteOptions{}))
	within(h.t, patient, "the pod runs on node "+to, func() bool { return h.readyOn(to) > before })
}

// attachmentsThatStay are those of the replicas that do not move, by their volumes.
func (h *handover) attachmentsThatStay() map[string]types.UID {
	h.t.Helper()
	all, err := h.attachments.List(labels.Everything())
	h.must(err)
	held := make(map[string]types.UID)
	for _, a := range all {
		if pv := *a.Spec.Source.PersistentVolumeName; pv != h.moved().Name && a.Spec.NodeName != bare {
			held[pv] = a.UID
		}
	}
	return held
}

// moved is the volume of the first replica.
func (h *handover) moved() *v1.PersistentVolume {
	h.t.Helper()
	claim, err := h.claims.Get("data-kept-0")
	h.must(err)
	pv, err := h.volumes.Get(claim.Spec.VolumeName)
	h.must(err)
	return pv
}

// unchanged fails the test unless the disks of pods that stay are attached as they were: no
// call has detached them. That the external-attacher repeats a call to attach is its own.
func (h *handover) unchanged() {
	h.t.Helper()
	for _, call := range h.driver.CallsOf("ControllerUnpublishVolume") {
		if call.Volume != h.moved().Spec.CSI.VolumeHandle {
			h.t.Errorf("%v: its pod has not moved", call)
		}
	}
	if got := h.attachmentsThatStay(); !maps.Equal(got, h.attached) || len(got) != 2 {
		h.t.Errorf("the VolumeAttachments of pods that stay are %v, were %v", got, h.attached)
	}
	if broken := h.violations(); len(broken) > 0 {
		h.t.Errorf("the driver was told to break its rules: %q", broken)
	}
}

// lists waits until the node without an agent is told that it has just these LUNs.
func (h *handover) lists(names ...string) {
	h.t.Helper()
	var want []v1.UniqueVolumeName
	for _, name := range names {
		want = append(want, lunName(name))
	}
	until(h.t, fmt.Sprintf("the node lists %q", names), func() bool {
		got := h.luns.listed(bare)
		slices.Sort(got)
		return slices.Equal(got, want)
	})
}

// useLUNs has pods of the node without an agent use LUNs.
func (h *handover) useLUNs() {
	h.t.Helper()
	h.luns.createNode(bare)
	h.luns.createLUN("first")
	h.luns.createPod(bare, "first")
	h.luns.createInline(bare, "inline")
	h.lists("first", "inline")
	h.luns.use(bare, []v1.UniqueVolumeName{lunName("first"), lunName("inline")})
}

// replaceLUN has a LUN that Kubernetes has attached go, and another come.
func (h *handover) replaceLUN() {
	h.t.Helper()
	h.lists("first", "inline")
	h.luns.createLUN("second")
	h.luns.createPod(bare, "second")
	h.lists("first", "inline", "second")
	h.luns.deletePod(bare, "first")
	h.luns.use(bare, []v1.UniqueVolumeName{lunName("inline"), lunName("second")})
	h.lists("inline", "second")
}

// releaseLUNs has Kubernetes detach what podvol has attached.
func (h *handover) releaseLUNs() {
	h.t.Helper()
	h.lists("inline", "second")
	h.luns.deletePod(bare, "inline")
	h.luns.deletePod(bare, "second")
	h.luns.use(bare, nil)
	h.lists()
	if a := h.luns.attachment("second"); a.DeletionTimestamp != nil || !slices.Contains(a.Finalizers, attachdetach.AttachedFinalizer) {
		h.t.Errorf("the record of who attached is %+v", a) // of which Kubernetes' controller knows nothing
	}
}

// removeLUNs removes everything of LUNs, which the record of one of them must not prevent.
func (h *handover) removeLUNs() {
	h.t.Helper()
	ctx := h.t.Context()
	for _, name := range []string{"first", "second"} {
		h.must(h.admin.CoreV1().PersistentVolumeClaims("ops").Delete(ctx, name, metav1.DeleteOptions{}), h.admin.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{}))
	}
}
