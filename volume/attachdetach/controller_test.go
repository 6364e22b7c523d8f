package attachdetach_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/attachdetach"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// wantEvent wants just one event of a pod that has all of these words.
func (w *world) wantEvent(words ...string) {
	w.t.Helper()
	events := w.takeEvents()
	found := slices.ContainsFunc(events, func(e string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(e, word) })
	})
	if !found {
		w.t.Errorf("no event with %q among %q", words, events)
	}
}

func TestAVolumeIsAttachedMountedAndDetached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		w.wantAttachments("a@n0+")
		if got := w.backend.mountsOf("n0"); !slices.Equal(got, []string{"a"}) {
			t.Errorf("mounted: %v", got)
		}
		w.wantEvent("p: Normal SuccessfulAttachVolume", `"a"`)
		w.deletePod("p")
		w.settle()
		w.wantAttachments()
		if got := w.node("n0").Status.VolumesAttached; len(got) > 0 {
			t.Errorf("the node still lists %v", got)
		}
	})
}

func TestAVolumeForOneNodeMovesOnceTheFirstHasLetItGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		w.addPod("q", "n1", "a")
		w.settle()
		w.wantAttachments("a@n0+")
		w.wantEvent("q: Warning FailedAttachVolume", "Multi-Attach error", "node n0 has it", "pod ops/p uses it there, and must go first")
		w.deletePod("p")
		w.settle()
		w.wantAttachments("a@n1+")
		w.wantEvent("q: Normal SuccessfulAttachVolume")
	})
}

func TestASharedVolumeIsAttachedToAllNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "shared")
		w.addPod("p", "n0", "shared")
		w.addPod("q", "n1", "shared")
		w.settle()
		w.wantAttachments("shared@n0+", "shared@n1+")
	})
}

func TestAPodThatHasEndedGivesItsVolumeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		w.change("Pod", "ops", "p", func(o metav1.Object) { o.(*v1.Pod).Status.Phase = v1.PodSucceeded })
		w.settle()
		w.wantAttachments()
	})
}

// A node that does not answer keeps its volumes, whatever the time, until somebody says that
// it is switched off.
func TestOnlyAFencedNodeIsNotWaitedFor(t *testing.T) {
	for name, fence := range map[string]func(w *world){
		"tainted": func(w *world) { w.fence("n0") },
		"deleted": func(w *world) {
			if err := w.store.Delete(w.t.Context(), nodeRef("n0"), noPreconditions); err != nil {
				w.t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 2, "a")
				w.addPod("p", "n0", "a")
				w.settle()
				w.powerOff("n0")
				w.deletePod("p")
				w.addPod("q", "n1", "a")
				time.Sleep(24 * time.Hour)
				w.wantAttachments("a@n0+")
				w.wantEvent("q: Warning FailedAttachVolume", "node n0 has it", "does not answer", "node.kubernetes.io/out-of-service")
				began := time.Now()
				fence(w)
				for !slices.Equal(w.attachments(), []string{"a@n1+"}) {
					time.Sleep(10 * time.Millisecond)
					if time.Since(began) > time.Hour {
						t.Fatalf("attachments %v after an hour", w.attachments())
					}
				}
				if took := time.Since(began) - 2*slowness; took > 100*time.Millisecond {
					t.Errorf("it took %v more than to detach and to attach", took)
				}
				w.wantAttachments("a@n1+")
				if forced := w.running.Stats().Forced[attachdetach.ForcedByTaint]; (forced == 1) != (name == "tainted") {
					t.Errorf("%d are forced", forced)
				}
			})
		})
	}
}

// The taint on a node that is Ready is a mistake.
func TestALivingNodeIsNotFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		w.takeEvents()
		w.agents["n0"].setOff(true) // it hangs, and answers all the same
		w.fence("n0")
		w.deletePod("p")
		w.addPod("q", "n1", "a")
		w.settle()
		w.wantAttachments("a@n0+")
		w.wantEvent("q: Warning FailedAttachVolume", "the taint node.kubernetes.io/out-of-service, which is not heeded before its Node is not Ready", "wait until it is not Ready")
	})
}

// What a node's own clock says of when it ceased to be Ready detaches nothing.
func TestANodesClockDetachesNothing(t *testing.T) {
	for name, at := range map[string]func() metav1.Time{
		"behind": func() metav1.Time { return metav1.NewTime(time.Now().Add(-2 * time.Hour)) },
		"absent": func() metav1.Time { return metav1.Time{} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, "a")
				w.stop()
				w.config.DetachAfter = time.Hour
				w.start()
				w.addPod("p", "n0", "a")
				w.settle()
				w.agents["n0"].setOff(true) // it is slow to unmount
				w.deletePod("p")
				w.changeNode("n0", func(n *v1.Node) {
					n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse, LastTransitionTime: at()}}
				})
				w.settle()
				w.wantAttachments("a@n0+")
				w.setReady("n0", true)
				w.agents["n0"].setOff(false)
				w.settle()
				w.wantAttachments()
			})
		})
	}
}

// A PersistentVolume that has ReadOnlyMany beside ReadWriteOnce is mounted for writing: one node
// has it. ReadOnlyMany alone is for all.
func TestReadOnlyManyBesideAModeThatWritesIsForOneNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a", "b")
		for disk, modes := range map[string][]v1.PersistentVolumeAccessMode{"a": {v1.ReadWriteOnce, v1.ReadOnlyMany}, "b": {v1.ReadOnlyMany}} {
			w.change("PersistentVolume", "", disk, func(o metav1.Object) { o.(*v1.PersistentVolume).Spec.AccessModes = modes })
		}
		w.backend.shared["b"] = true
		w.addPod("p", "n0", "a", "b")
		w.settle()
		w.addPod("q", "n1", "a", "b")
		w.settle()
		w.wantAttachments("a@n0+", "b@n0+", "b@n1+")
		w.wantEvent("q: Warning FailedAttachVolume", "with ReadOnlyMany alone any number of nodes may have it")
	})
}

// Only where the administrator wants it, time alone detaches.
func TestTimeDetachesOnlyWhereItIsToldTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a")
		w.stop()
		w.config.DetachAfter = time.Hour
		w.start()
		w.addPod("p", "n0", "a")
		w.settle()
		w.powerOff("n0")
		w.deletePod("p")
		time.Sleep(59 * time.Minute)
		w.wantAttachments("a@n0+")
		time.Sleep(2 * time.Minute)
		w.wantAttachments()
		if forced := w.running.Stats().Forced; !maps.Equal(forced, map[string]int{attachdetach.ForcedByTime: 1}) {
			t.Errorf("forced: %v", forced)
		}
	})
}

func TestAFailedAttachIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.setAttaching("a", errors.New("no such disk"))
		w.addPod("p", "n0", "a")
		w.settle()
		events := w.takeEvents()
		if len(events) != 1 || !strings.Contains(events[0], `p: Warning FailedAttachVolume volume "a" is not attached to node n0: attaching it failed: no such disk`) {
			t.Errorf("events %q", events)
		}
		w.setAttaching("a", nil)
		w.settle()
		w.wantAttachments("a@n0+")
	})
}

// What a controller left that has ended is found again, also of nodes and volumes that are
// gone.
func TestWhatIsLeftIsDetachedAtTheNextStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, "a", "b", "c")
		w.addPod("p", "n0", "a")
		w.addPod("q", "n1", "b")
		w.addPod("r", "n2", "c")
		w.settle()
		w.stop()
		w.deletePod("p")
		w.powerOff("n1")
		w.deletePod("q")
		w.letGo("q")
		w.deletePod("r")
		for _, ref := range []volumeRef{nodeRef("n1"), pvRef("c")} {
			if err := w.store.Delete(t.Context(), ref, noPreconditions); err != nil {
				t.Fatal(err)
			}
		}
		w.settle()
		w.wantAttachments("a@n0+", "b@n1+", "c@n2+")
		w.start()
		w.settle()
		w.wantAttachments()
	})
}

// A volume whose driver needs no attaching any more leaves no attachment, but not before it
// is unmounted.
func TestADriverThatCeasesToNeedAttachingLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		w.create(csiDriver(false))
		w.settle()
		w.wantAttachments("a@n0+")
		w.deletePod("p")
		w.settle()
		w.wantAttachments()
	})
}

// A failed look-up is not the same as a pod that wants nothing.
func TestAFailedLookUpDetachesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		w.stop()
		failed := errors.New("the API server does not answer")
		w.failed.Store(&failed)
		w.agents["n0"].setOff(true)
		w.changeNode("n0", func(n *v1.Node) { n.Status.VolumesInUse = nil })
		w.start()
		w.settle()
		w.wantAttachments("a@n0+")
		w.failed.Store(nil)
		w.agents["n0"].setOff(false)
		w.settle()
		w.wantAttachments("a@n0+")
	})
}

func TestANodeThatAttachesByItselfIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a", "b")
		w.addPod("p", "n0", "a")
		w.settle()
		w.changeNode("n0", func(n *v1.Node) { n.Annotations = nil })
		w.settle()
		w.addPod("q", "n0", "b")
		w.deletePod("p")
		w.settle()
		w.wantAttachments("a@n0+")
	})
}

// A claim that is deleted by force takes no disk from the pod that has it.
func TestAClaimThatGoesTakesNoVolumeFromItsPod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		if err := w.store.Delete(t.Context(), claimRef("a"), noPreconditions); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.wantAttachments("a@n0+")
	})
}

// Nothing is done while nothing changes.
func TestAnIdleControllerAsksNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a", "b")
		w.addPod("p", "n0", "a")
		w.addPod("q", "n1", "b")
		w.settle()
		before := w.client.Count()
		time.Sleep(24 * time.Hour)
		if calls := w.client.Count() - before; calls > 0 {
			t.Errorf("%d calls in a day: %v", calls, w.client.Calls()[before:])
		}
	})
}

// An attachment that somebody deletes is made again.
func TestAnAttachmentDeletedByHandIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.setAttaching("a", errors.New("it takes its time"))
		w.addPod("p", "n0", "a")
		w.settle()
		if err := w.store.Delete(t.Context(), attachmentRef("a", "n0"), noPreconditions); err != nil {
			t.Fatal(err)
		}
		w.setAttaching("a", nil)
		w.settle()
		w.wantAttachments("a@n0+")
	})
}

// lunPlugin has volumes of iSCSI, which an agent attaches.
type lunPlugin struct{ volume.AttachableVolumePlugin }

func (lunPlugin) Init(volume.VolumeHost) error { return nil }
func (lunPlugin) GetPluginName() string        { return "example.com/lun" }
func (lunPlugin) CanSupport(spec *volume.Spec) bool {
	return spec.PersistentVolume != nil && spec.PersistentVolume.Spec.ISCSI != nil || spec.Volume != nil && spec.Volume.ISCSI != nil
}
func (lunPlugin) GetVolumeName(spec *volume.Spec) (string, error) {
	if spec.Volume != nil {
		return spec.Volume.ISCSI.IQN, nil
	}
	return spec.PersistentVolume.Spec.ISCSI.IQN, nil
}
func (lunPlugin) CanAttach(context.Context, *volume.Spec) (bool, error) { return true, nil }

// A plugin's volumes are attached as those of a CSI driver are, by an attacher of its name.
func TestAPluginsVolumeIsAttached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorldOfLUNs(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		w.wantAttachments("a@n0+")
		all, err := objects.List[*storagev1.VolumeAttachment](t.Context(), w.store, "VolumeAttachment", "")
		if err != nil || all[0].Spec.Attacher != "lun.example.com" {
			t.Errorf("the attacher is %v (%v)", all, err)
		}
		if listed := w.node("n0").Status.VolumesAttached; len(listed) != 1 || listed[0].Name != "example.com/lun/iqn.a" {
			t.Errorf("listed: %v", listed)
		}
	})
}

// Attachments that somebody else has made are left alone: those of nothing that is known, and
// those with a name of their own, which count all the same.
func TestAttachmentsOfOthersAreLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		for name, pv := range map[string]string{"lonely": "nothing", "mine": "a"} {
			w.create(foreignAttachment(name, pv))
		}
		w.settle()
		w.addPod("p", "n0", "a")
		w.settle()
		w.wantAttachments("a@elsewhere+", "nothing@elsewhere+")
		w.wantEvent("p: Warning FailedAttachVolume", "node elsewhere has it", "VolumeAttachment mine")
		if err := w.store.Delete(t.Context(), volume.NewObjectRef("VolumeAttachment", "", "mine"), noPreconditions); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.wantAttachments("a@n0+", "nothing@elsewhere+")
	})
}

// A volume is detached only once the node's status does not list it.
func TestAStatusThatCannotBeWrittenKeepsTheVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		remove := w.client.Inject(fault.Fault[objectstest.Call]{Match: func(c objectstest.Call) bool { return c.Verb == "update status" && c.Ref.Kind == "Node" }, Err: errLost})
		w.deletePod("p")
		w.settle()
		w.wantAttachments("a@n0+")
		remove()
		w.settle()
		w.wantAttachments()
	})
}

// A volume that cannot be detached is not attached elsewhere; whoever waits for it is told.
func TestAFailedDetachIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		w.setDetaching("a", errors.New("the cloud is down"))
		w.deletePod("p")
		w.addPod("q", "n1", "a")
		w.settle()
		w.wantAttachments("a@n0+-")
		w.wantEvent("q: Warning FailedAttachVolume", "node n0 has it", "detaching it fails: the cloud is down")
		w.setDetaching("a", nil)
		w.settle()
		w.wantAttachments("a@n1+")
	})
}

// A pod is not told the names of pods of other namespaces.
func TestPodsOfOtherNamespacesAreNotNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a")
		w.addPod("p", "n0", "a")
		w.settle()
		pv := pvbuild.NewPV("b", "1Gi", pvbuild.WithModes(v1.ReadWriteOnce))
		pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "a"}}
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "others", Name: "b", UID: "uid-b"}
		claim := pvbuild.NewClaim("b", "1Gi", pvbuild.Naming("b"))
		claim.Namespace = "others"
		w.create(pv)
		w.create(claim)
		w.change("PersistentVolumeClaim", "others", "b", func(o metav1.Object) { o.(*v1.PersistentVolumeClaim).Status.Phase = v1.ClaimBound })
		pod := podOn("q", "n1", "b")
		pod.Namespace = "others"
		w.create(pod)
		w.settle()
		events := w.takeEvents()
		if !slices.ContainsFunc(events, func(e string) bool {
			return strings.Contains(e, "q: Warning") && strings.Contains(e, "1 pods of other namespaces use it") && !strings.Contains(e, "ops/p")
		}) {
			t.Errorf("events %q", events)
		}
	})
}
