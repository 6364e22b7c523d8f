package attachdetach_test

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
)

// newWorldOfLUNs has nodes without agents, and a LUN for each name.
func newWorldOfLUNs(t *testing.T, nodes int, luns ...string) *world {
	t.Helper()
	w := newWorld(t, nodes, luns...)
	w.stop()
	plugins, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{lunPlugin{}}, &volume.Host{})
	if err != nil {
		t.Fatal(err)
	}
	w.config.Plugins = plugins
	for _, lun := range luns {
		w.change("PersistentVolume", "", lun, func(o metav1.Object) {
			o.(*v1.PersistentVolume).Spec.PersistentVolumeSource = v1.PersistentVolumeSource{ISCSI: &v1.ISCSIPersistentVolumeSource{IQN: "iqn." + lun}}
		})
	}
	for _, agent := range w.agents {
		agent.setOff(true)
	}
	w.start()
	return w
}

const lunA v1.UniqueVolumeName = "example.com/lun/iqn.a"

// list has a node list volumes as another controller has left them, and use them.
func (w *world) list(node string, attached, used []v1.UniqueVolumeName) {
	w.changeNode(node, func(n *v1.Node) {
		n.Status.VolumesInUse, n.Status.VolumesAttached = used, nil
		for _, name := range attached {
			n.Status.VolumesAttached = append(n.Status.VolumesAttached, v1.AttachedVolume{Name: name})
		}
	})
}

func inline(name, node, iqn string) *v1.Pod {
	pod := pvbuild.PodOf()
	pod.Name, pod.UID, pod.Spec.NodeName = name, "", node
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{ISCSI: &v1.ISCSIVolumeSource{IQN: iqn}}}}
	return pod
}

// An inline volume of a plugin is listed for each node that has a pod with it, until the node does
// not use it: no VolumeAttachment can say it.
func TestAnInlineVolumeOfAPluginIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOfLUNs(t, 2)
		w.create(inline("p", "n0", "iqn.a"))
		w.create(inline("q", "n1", "iqn.a"))
		w.settle()
		w.wantAttachments()
		w.wantListed("n0", lunA)
		w.wantListed("n1", lunA)
		w.changeNode("n0", func(n *v1.Node) { n.Status.VolumesInUse = []v1.UniqueVolumeName{lunA} })
		w.stop()
		w.deletePod("p")
		w.start()
		w.settle()
		w.wantListed("n0", lunA)
		w.changeNode("n0", func(n *v1.Node) { n.Status.VolumesInUse = nil })
		w.settle()
		w.wantListed("n0")
		w.wantListed("n1", lunA)
	})
}

// What Kubernetes' controller has attached to a node, of which the node's list is all that says
// so, is attached to no other before that node lets it go.
func TestWhatAnotherControllerListedIsTakenOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOfLUNs(t, 2, "a")
		w.stop()
		w.list("n0", []v1.UniqueVolumeName{lunA, "kubernetes.io/csi/gone^disk"}, []v1.UniqueVolumeName{lunA})
		w.start()
		w.addPod("q", "n1", "a")
		w.settle()
		w.wantAttachments()
		w.wantListed("n0", lunA)
		w.wantEvent("q: Warning FailedAttachVolume", "Multi-Attach error", "node n0 has it", "still has it mounted")
		w.changeNode("n0", func(n *v1.Node) { n.Status.VolumesInUse = nil })
		w.settle()
		w.wantListed("n0")
		w.wantAttachments("a@n1+")
	})
}

// A pod that runs on the node keeps the volume there, and gets its VolumeAttachment.
func TestAPodKeepsWhatAnotherControllerListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOfLUNs(t, 2, "a")
		w.stop()
		w.list("n0", []v1.UniqueVolumeName{lunA}, nil)
		w.addPod("p", "n0", "a")
		w.addPod("q", "n1", "a")
		w.start()
		w.settle()
		w.wantAttachments("a@n0+")
		w.wantListed("n0", lunA)
	})
}

// A node that is switched off is not waited for, whichever controller has attached.
func TestAFencedNodeGivesUpWhatItListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, away := range map[string]func(w *world){
			"tainted": func(w *world) { w.fence("n0") },
			"after a time": func(w *world) {
				time.Sleep(2 * time.Hour)
			},
		} {
			w := newWorldOfLUNs(t, 2, "a")
			w.stop()
			w.config.DetachAfter = time.Hour
			w.list("n0", []v1.UniqueVolumeName{lunA}, []v1.UniqueVolumeName{lunA})
			w.setReady("n0", false)
			w.start()
			w.addPod("q", "n1", "a")
			time.Sleep(10 * time.Minute)
			w.wantAttachments()
			away(w)
			w.settle()
			if got := w.attachments(); len(got) != 1 || got[0] != "a@n1+" {
				t.Errorf("%s: attachments %v", name, got)
			}
		}
	})
}

// What another controller has listed stays so while the node uses it, though a VolumeAttachment is
// there that no controller has made.
func TestAForeignAttachmentTakesNothingFromTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOfLUNs(t, 1, "a")
		w.stop()
		w.list("n0", []v1.UniqueVolumeName{lunA}, []v1.UniqueVolumeName{lunA})
		mine := foreignAttachment("mine", "a")
		mine.Spec.NodeName, mine.Spec.Attacher = "n0", "lun.example.com"
		w.create(mine)
		w.addPod("p", "n0", "a")
		w.start()
		w.settle()
		w.wantListed("n0", lunA)
		if events := w.takeEvents(); len(events) > 0 {
			t.Errorf("events %q", events)
		}
		w.deletePod("p")
		w.letGo("p")
		w.settle()
		w.wantListed("n0", lunA)
		w.changeNode("n0", func(n *v1.Node) { n.Status.VolumesInUse = nil })
		w.settle()
		w.wantListed("n0")
	})
}
