package persistentvolume_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// unused returns a claim's condition Unused, nil for none.
func (w *world) unused(claim string) *v1.PersistentVolumeClaimCondition {
	w.t.Helper()
	var found []v1.PersistentVolumeClaimCondition
	for _, c := range w.claim(claim).Status.Conditions {
		if c.Type == "Unused" {
			found = append(found, c)
		}
	}
	switch len(found) {
	case 0:
		return nil
	case 1:
		return &found[0]
	}
	w.t.Errorf("claim %s has %v", claim, found)
	return &found[0]
}

// The condition follows the pods that name the claim and have not ended, and is
// written when it changes only. A claim that is not bound has none, and one that is
// being deleted keeps its own.
func TestTheConditionUnusedFollowsThePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("data", "1Gi"), pvbuild.NewClaim("waits", "1Gi", pvbuild.OfClass("nix")))
		w.config.UnusedCondition = true
		w.start()
		var last metav1.Time
		want := func(step string, status v1.ConditionStatus, reason string, changes bool) {
			t.Helper()
			w.settle()
			c := w.unused("data")
			if c == nil || c.Status != status || c.Reason != reason || c.LastTransitionTime.IsZero() || c.LastTransitionTime.Equal(&last) == changes {
				t.Fatalf("%s: %+v, was %v", step, c, last)
			}
			last = c.LastTransitionTime
		}
		pod := func(name string, node string) {
			p := pvbuild.PodOf("data")
			p.Name, p.UID, p.Spec.NodeName = name, "", node
			w.create(p)
		}
		end := func(name string, phase v1.PodPhase) {
			t.Helper()
			p, err := objects.Get[*v1.Pod](t.Context(), w.store, volume.NewObjectRef("Pod", "ops", name))
			if err != nil {
				t.Fatal(err)
			}
			p = p.DeepCopy()
			p.Status.Phase = phase
			if _, err := w.api.UpdateStatus(t.Context(), p); err != nil {
				t.Fatal(err)
			}
		}
		want("nobody has used it", v1.ConditionTrue, "NoPodsUsingPVC", true)
		pod("a", "")
		want("a pod waits for its node", v1.ConditionFalse, "PodUsingPVC", true)
		pod("b", "node1")
		w.delete("Pod", "ops", "a")
		want("another runs", v1.ConditionFalse, "PodUsingPVC", false)
		end("b", v1.PodSucceeded)
		want("it has ended", v1.ConditionTrue, "NoPodsUsingPVC", true)
		w.delete("Pod", "ops", "b")
		want("it is deleted", v1.ConditionTrue, "NoPodsUsingPVC", false)
		w.stop()
		w.start()
		want("another controller", v1.ConditionTrue, "NoPodsUsingPVC", false)
		pod("c", "node1")
		want("a third runs", v1.ConditionFalse, "PodUsingPVC", true)
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		end("c", v1.PodFailed)
		want("it is being deleted", v1.ConditionFalse, "PodUsingPVC", false)
		if c := w.unused("waits"); c != nil {
			t.Errorf("a claim that is not bound has %+v", c)
		}
	})
}

// slowPod is a client to which one pod becomes known late.
type slowPod struct {
	*objectstest.Client
	name string
}

func (s slowPod) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	if ref.Kind == "Pod" && ref.Name == s.name {
		time.Sleep(time.Second)
	}
	return s.Client.Get(ctx, ref)
}

// A claim that one pod hands over to the next is used all the time, in whichever order
// the controller takes note of the two.
func TestTheConditionUnusedWhereAPodIsNotedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second := pvbuild.PodOf("data"), pvbuild.PodOf("data")
		first.Name, first.UID, second.Name, second.UID = "a", "1", "b", "2"
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("data", "1Gi"), first)
		w.config.UnusedCondition, w.slowPod = true, "b"
		w.start()
		w.settle()
		before := w.unused("data")
		w.create(second)
		w.delete("Pod", "ops", "a")
		w.settle()
		if now := w.unused("data"); before == nil || now == nil || *now != *before || now.Status != v1.ConditionFalse {
			t.Errorf("the condition was %+v and is %+v", before, now)
		}
	})
}

// Where it is not asked for nothing is written, and until all pods are announced no
// claim is called unused.
func TestTheConditionUnusedWaitsForAllPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewPV("pv2", "1Gi"), pvbuild.NewClaim("data", "1Gi"), pvbuild.NewClaim("used", "1Gi"), onNode(pvbuild.PodOf("used"), "a"))
		w.start()
		w.settle()
		w.wantClaim("data", v1.ClaimBound)
		if slices.ContainsFunc([]string{"data", "used"}, func(name string) bool { return w.unused(name) != nil }) {
			t.Error("a condition that nobody has asked for")
		}
		w.stop()
		w.config.UnusedCondition, w.incomplete = true, true
		w.start()
		w.settle()
		if data, used := w.unused("data"), w.unused("used"); data != nil || used == nil || used.Status != v1.ConditionFalse {
			t.Errorf("before all pods are announced: %+v, %+v", data, used)
		}
		w.complete()
		w.settle()
		if data := w.unused("data"); data == nil || data.Status != v1.ConditionTrue {
			t.Errorf("after that: %+v", data)
		}
	})
}
