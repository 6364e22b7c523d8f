package attachdetach_test

import (
	"errors"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/csitranslation"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

const (
	gce     = "pd.csi.storage.gke.io"
	gceDisk = "projects/UNSPECIFIED/zones/z/disks/a"
)

// A volume of an in-tree type is attached by the driver that it is one of by now, whether a
// claim has it or the pod itself, and is known again by the next controller.
func TestTranslatedVolumesAreAttached(t *testing.T) {
	for name, tc := range map[string]struct {
		handle string
		change func(*world, *v1.Pod)
	}{
		"by a claim": {gceDisk, func(w *world, _ *v1.Pod) {
			w.change("PersistentVolume", "", "a", func(o metav1.Object) {
				pv := o.(*v1.PersistentVolume)
				pv.Labels = map[string]string{v1.LabelTopologyZone: "z"}
				pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "a"}}
			})
		}},
		"inline": {"projects/UNSPECIFIED/zones/UNSPECIFIED/disks/a", func(_ *world, pod *v1.Pod) {
			pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "a"}}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, "a")
				w.stop()
				w.agents["n0"].setOff(true)
				w.config.Translator = csitranslation.New()
				pod := podOn("p", "n0", "a")
				tc.change(w, pod)
				w.create(pod)
				w.create(translating("n0"))
				w.start()
				w.settle()
				want := pvapi.CSIAttachmentName(tc.handle, gce, "n0")
				all, err := objects.List[*storagev1.VolumeAttachment](t.Context(), w.store, "VolumeAttachment", "")
				if err != nil || len(all) != 1 || all[0].Name != want || all[0].Spec.Attacher != gce {
					t.Fatalf("%+v (%v), want %s", all, err, want)
				}
				if inline := all[0].Spec.Source.InlineVolumeSpec; (name == "inline") != (inline != nil && inline.CSI.VolumeHandle == tc.handle) {
					t.Errorf("the source is %+v", all[0].Spec.Source)
				}
				w.wantListed("n0", v1.UniqueVolumeName("kubernetes.io/csi/"+gce+"^"+tc.handle))
				w.change("VolumeAttachment", "", want, func(o metav1.Object) { o.SetAnnotations(nil) }) // as another controller makes it
				w.stop()
				w.start()
				w.deletePod("p")
				w.letGo("p")
				w.settle()
				w.wantListed("n0")
				if all, err := objects.List[*storagev1.VolumeAttachment](t.Context(), w.store, "VolumeAttachment", ""); err != nil || len(all) > 0 {
					t.Errorf("left: %+v (%v)", all, err)
				}
			})
		})
	}
}

// translating is the CSINode of a node that mounts volumes of in-tree plugins by CSI drivers.
func translating(node string) *storagev1.CSINode {
	annotations := map[string]string{"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,kubernetes.io/gce-pd"}
	return &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: annotations}}
}

// put makes a CSINode, or replaces it.
func (w *world) put(node *storagev1.CSINode) {
	w.t.Helper()
	_, err := w.store.Update(w.t.Context(), node)
	if errors.Is(err, volume.ErrNotFound) {
		_, err = w.store.Create(w.t.Context(), node)
	}
	if err != nil {
		w.t.Error(err)
	}
}

// A node that does not say that it translates a volume does not get it: the pod is told what is
// missing. Once the node says it, the volume is attached, and stays so if the node ceases to.
func TestANodeThatDoesNotTranslateGetsNoTranslatedVolume(t *testing.T) {
	for name, tc := range map[string]struct {
		node *storagev1.CSINode
		want string
	}{
		"no CSINode":    {nil, "the node has no CSINode"},
		"no annotation": {csiNode("n0", 1), "CSINode does not say"},
		"another plugin": {&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n0", Annotations: map[string]string{
			"storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/gce-pd2,kubernetes.io/aws-ebs"}}}, "CSINode does not say"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, "a")
				w.stop()
				w.agents["n0"].setOff(true)
				w.config.Translator = csitranslation.New()
				if tc.node != nil {
					w.create(tc.node)
				}
				pod := podOn("p", "n0", "a")
				pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "a"}}
				w.create(pod)
				w.start()
				w.settle()
				w.wantAttachments()
				w.wantEvent("p: Warning FailedAttachVolume", tc.want, "kubernetes.io/gce-pd", "storage.alpha.kubernetes.io/migrated-plugins", "agent")

				handle := "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/a"
				w.put(translating("n0"))
				w.settle()
				w.wantAttachments(handle + "@n0+")
				w.put(csiNode("n0", 1))
				w.settle()
				w.wantAttachments(handle + "@n0+")
				w.wantListed("n0", v1.UniqueVolumeName("kubernetes.io/csi/"+gce+"^"+handle))
			})
		})
	}
}

// wantListed wants a node to be told of just these volumes.
func (w *world) wantListed(node string, want ...v1.UniqueVolumeName) {
	w.t.Helper()
	got := w.node(node).Status.VolumesAttached
	if len(got) != len(want) || len(want) > 0 && got[0].Name != want[0] {
		w.t.Errorf("node %s is told of %v, want %v", node, got, want)
	}
}
