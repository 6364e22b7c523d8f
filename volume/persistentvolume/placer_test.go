package persistentvolume_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

func newNode(name string, labels ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}}}
	for i := 0; i < len(labels); i += 2 {
		n.Labels[labels[i]] = labels[i+1]
	}
	return n
}

func nodes() []*v1.Node {
	return []*v1.Node{newNode("node1", "zone", "a"), newNode("node2", "zone", "b"), newNode("node3", "zone", "a")}
}

func localPV(name, size, node string) *v1.PersistentVolume {
	return pvbuild.NewPV(name, size, pvbuild.Class("local"), pvbuild.OnHost(node))
}

// place places a pod on one of the nodes and commits that.
func (w *world) place(pod *v1.Pod) (node string, err error) {
	p, err := w.controller.Place(w.t.Context(), pod, nodes())
	if err != nil {
		return "", err
	}
	return p.Node, p.Commit(w.t.Context())
}

func TestLocalVolumesAreBoundWhereThePodIsPlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("local", waitForConsumer),
			localPV("n1-small", "1Gi", "node1"), localPV("n2-small", "1Gi", "node2"), localPV("n2-large", "5Gi", "node2"), localPV("n2-larger", "6Gi", "node2"),
			pvbuild.NewClaim("large", "5Gi", pvbuild.OfClass("local")), pvbuild.NewClaim("small", "1Gi", pvbuild.OfClass("local")), pvbuild.NewClaim("more", "1Gi", pvbuild.OfClass("local")))
		w.start()
		w.settle()
		// Only the second node has volumes for both.
		if node, err := w.place(pvbuild.PodOf("large", "small")); node != "node2" || err != nil {
			t.Fatalf("placed on %q, %v", node, err)
		}
		w.settle()
		w.wantBound("small", "n2-small")
		w.wantBound("large", "n2-large")
		if w.pv("n2-large").Annotations["pv.kubernetes.io/bound-by-controller"] != "yes" {
			t.Error("it is not noted that the controller chose the volume")
		}
		// A second pod with these claims can be on that node alone.
		if node, err := w.place(pvbuild.PodOf("small", "large")); node != "node2" || err != nil {
			t.Errorf("placed on %q, %v", node, err)
		}
		_, err := w.controller.Place(t.Context(), pvbuild.PodOf("small"), nodes()[:1])
		if err == nil || !strings.Contains(err.Error(), `place pod "ops/pod": node "node1": PersistentVolumeClaim "ops/small": its volume "n2-small" cannot be reached from there`) {
			t.Errorf("err = %v", err)
		}
		if node, err := w.place(pvbuild.PodOf("more")); node != "node1" || err != nil {
			t.Errorf("placed on %q, %v", node, err)
		}
	})
}

func TestAPlacementKeepsItsVolumesUntilItEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("local", waitForConsumer), localPV("pv", "1Gi", "node1"),
			pvbuild.NewClaim("a", "1Gi", pvbuild.OfClass("local")), pvbuild.NewClaim("b", "1Gi", pvbuild.OfClass("local")))
		w.start()
		w.settle()
		first, err := w.controller.Place(t.Context(), pvbuild.PodOf("a"), nodes())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.controller.Place(t.Context(), pvbuild.PodOf("b"), nodes()); !errors.Is(err, claimbinding.ErrUnbound) {
			t.Errorf("the same volume was given twice, or err = %v", err)
		}
		if _, err := w.controller.Place(t.Context(), pvbuild.PodOf("a"), nodes()); !errors.Is(err, index.ErrReserved) {
			t.Errorf("err = %v", err)
		}
		first.Rollback()
		first.Rollback()
		if node, err := w.place(pvbuild.PodOf("b")); node != "node1" || err != nil {
			t.Errorf("after the rollback: %q, %v", node, err)
		}
		if err := first.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		w.settle()
		w.wantBound("b", "pv")
		w.wantClaim("a", v1.ClaimPending)
	})
}

func TestAPlacementThatIsOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("local", waitForConsumer), localPV("pv1", "1Gi", "node1"), localPV("pv2", "1Gi", "node1"),
			pvbuild.NewClaim("a", "1Gi", pvbuild.OfClass("local")), pvbuild.NewClaim("b", "1Gi", pvbuild.OfClass("local")))
		w.start()
		w.settle()
		p, err := w.controller.Place(t.Context(), pvbuild.PodOf("a", "b"), nodes())
		if err != nil {
			t.Fatal(err)
		}
		w.change("pv2", pvbuild.ForClaim("rival", "rival"))
		if err := p.Commit(t.Context()); !errors.Is(err, objects.ErrConflict) {
			t.Errorf("err = %v", err)
		}
		w.settle()
		w.create(localPV("pv3", "1Gi", "node1"))
		w.settle()
		if node, err := w.place(pvbuild.PodOf("a", "b")); node != "node1" || err != nil {
			t.Errorf("%q, %v", node, err)
		}
		w.settle()
		for _, name := range []string{"a", "b"} {
			w.wantBound(name, w.claim(name).Spec.VolumeName)
		}
	})
}

func TestStorageIsMadeWhereThePodIsPlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storageClass("fast", made, waitForConsumer)
		c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"b"}}}}}
		w := newWorld(t, c, pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))).withStorage()
		for _, n := range nodes() {
			w.create(n)
		}
		w.start()
		w.settle()
		if node, err := w.place(pvbuild.PodOf("data")); node != "node2" || err != nil {
			t.Fatalf("placed on %q, %v", node, err)
		}
		w.settle()
		w.wantBound("data", "pvc-uid-data")
		if onNode1, _ := claimbinding.MatchesNode(w.pv("pvc-uid-data"), nil, "node1"); onNode1 {
			t.Error("it was not made for the node")
		}
	})
}

func TestAClaimWhoseStorageIsBeingMadeStaysOnItsNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made, waitForConsumer), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))).withStorage()
		for _, n := range nodes() {
			w.create(n)
		}
		w.start()
		w.settle()
		w.storage.fail(errors.New("the server does not answer")) // so it may have been made
		if node, err := w.place(pvbuild.PodOf("data")); node != "node1" || err != nil {
			t.Fatalf("placed on %q, %v", node, err)
		}
		w.settle()
		if _, err := w.controller.Place(t.Context(), pvbuild.PodOf("data"), nodes()[1:]); !errors.Is(err, persistentvolume.ErrOtherNodeSelected) {
			t.Errorf("err = %v", err)
		}
		if node, err := w.place(pvbuild.PodOf("data")); node != "node1" || err != nil {
			t.Errorf("placed on %q, %v", node, err)
		}
		w.storage.fail(nil)
		w.settle()
		w.wantBound("data", "pvc-uid-data")
	})
}

func TestPodsThatCannotBePlaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rwop := pvbuild.NewClaim("rwop", "1Gi", pvbuild.WantsModes(v1.ReadWriteOncePod))
		ephemeral := pvbuild.PodOf()
		ephemeral.Spec.Volumes = []v1.Volume{{Name: "immediate", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
		w := newWorld(t, storageClass("local", waitForConsumer), pvbuild.NewClaim("immediate", "9Gi"), pvbuild.NewClaim("delayed", "1Gi", pvbuild.OfClass("local")),
			pvbuild.NewPV("for-one", "1Gi", pvbuild.WithModes(v1.ReadWriteOncePod)), rwop, onNode(pvbuild.PodOf("rwop"), "other"), pvbuild.NewClaim("pod-immediate", "9Gi"), pvbuild.NewClaim("going", "1Gi", func(c *v1.PersistentVolumeClaim) { c.Finalizers = []string{"example.com/late"} }))
		w.delete("PersistentVolumeClaim", "ops", "going")
		w.start()
		w.settle()
		for name, tc := range map[string]struct {
			pod  *v1.Pod
			want error
			text string
		}{
			"no such claim":      {pvbuild.PodOf("nix"), volume.ErrNotFound, `place pod "ops/pod": PersistentVolumeClaim "ops/nix": `},
			"bound at once":      {pvbuild.PodOf("immediate"), persistentvolume.ErrNotBoundYet, "is not bound yet"},
			"no volume":          {pvbuild.PodOf("delayed"), claimbinding.ErrUnbound, `node "node1": PersistentVolumeClaim "ops/delayed": bind`},
			"used by another":    {pvbuild.PodOf("rwop"), persistentvolume.ErrUsedByOtherPod, "ReadWriteOncePod"},
			"somebody's claim":   {ephemeral, claimbinding.ErrElsewhere, `ephemeral volume "immediate"`},
			"a claim that goes":  {pvbuild.PodOf("going"), claimbinding.ErrUnbound, "being deleted"},
			"one of many claims": {pvbuild.PodOf("delayed", "nix"), volume.ErrNotFound, "nix"},
		} {
			_, err := w.controller.Place(t.Context(), tc.pod, nodes())
			if !errors.Is(err, tc.want) || !strings.Contains(fmt.Sprint(err), tc.text) {
				t.Errorf("%s: err = %v", name, err)
			}
		}
		if _, err := w.controller.Place(t.Context(), pvbuild.PodOf("delayed"), nil); err == nil || !strings.Contains(err.Error(), "there is no node") {
			t.Errorf("err = %v", err)
		}
		if p, err := w.controller.Place(t.Context(), pvbuild.PodOf(), nodes()); err != nil || p.Node != "node1" {
			t.Errorf("a pod without volumes: %v, %v", p, err)
		}
		w.delete("Pod", "ops", "other")
		w.settle()
		if _, err := w.place(pvbuild.PodOf("rwop")); err != nil {
			t.Errorf("once the other pod is gone: %v", err)
		}
	})
}

// Whatever call a placement dies at, the pod is placed again after the restart,
// and its volumes are then all on one node.
func TestPlacementSurvivesACrashAtEveryCall(t *testing.T) {
	sweepCrashes(t, 10, func(t *testing.T) *world {
		w := newWorld(t, storageClass("local", waitForConsumer), storageClass("fast", made, waitForConsumer, func(c *storagev1.StorageClass) { c.Provisioner = storagePlugin }),
			localPV("n1", "1Gi", "node1"), localPV("n2a", "1Gi", "node2"), localPV("n2b", "1Gi", "node2"),
			pvbuild.NewClaim("a", "1Gi", pvbuild.OfClass("local")), pvbuild.NewClaim("b", "1Gi", pvbuild.OfClass("local")), pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("fast"))).withStorage()
		for _, n := range nodes() {
			w.create(n)
		}
		w.afterStart = func() {
			_, _ = w.place(pvbuild.PodOf("a", "b", "c")) // which may die
		}
		return w
	}, func(w *world) { w.afterStart = nil }, func(w *world) {
		if node, err := w.place(pvbuild.PodOf("a", "b", "c")); node != "node2" || err != nil {
			w.t.Fatalf("placed on %q, %v", node, err)
		}
		w.settle()
		for _, name := range []string{"a", "b", "c"} {
			pv := w.claim(name).Spec.VolumeName
			w.wantBound(name, pv)
			if reachable, _ := claimbinding.MatchesNode(w.pv(pv), nil, "node2"); !reachable {
				w.t.Errorf("claim %s has %s, which is elsewhere", name, pv)
			}
		}
	})
}

// A claim that is being deleted gets no volume any more, which would go with it.
func TestCommitGivesNothingToAClaimThatIsBeingDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := pvbuild.PodOf("data")
		pod.Spec.NodeName = "node1"
		w := newWorld(t, storageClass("local", waitForConsumer), pvbuild.NewPV("pv", "1Gi", pvbuild.Class("local"), withPolicy(v1.PersistentVolumeReclaimDelete)),
			pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("local")), pod).withStorage()
		w.start()
		w.settle()
		p, err := w.controller.Place(t.Context(), pod, nodes())
		if err != nil {
			t.Fatal(err)
		}
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		if err := p.Commit(t.Context()); !errors.Is(err, claimbinding.ErrUnbound) {
			t.Errorf("Commit: %v", err)
		}
		w.delete("Pod", "ops", "pod")
		w.settle()
		w.wantPV("pv", v1.VolumeAvailable)
	})
}

func TestPlacingRefusesWhatNoNodeWouldMount(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*world)
		want   error
	}{
		"the volume is another's": {func(w *world) { w.change("pv", pvbuild.ForClaim("rival", "rival")) }, claimbinding.ErrLost},
		"the volume is gone": {func(w *world) {
			w.delete("PersistentVolume", "", "pv")
			w.change("pv", func(pv *v1.PersistentVolume) { pv.Finalizers = nil })
		}, claimbinding.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, pvbuild.NewPV("pv", "1Gi", withPolicy(v1.PersistentVolumeReclaimRetain)), pvbuild.NewClaim("data", "1Gi"))
				w.start()
				w.settle()
				w.wantBound("data", "pv")
				tc.change(w)
				w.settle()
				w.wantClaim("data", v1.ClaimLost)
				if p, err := w.controller.Place(t.Context(), pvbuild.PodOf("data"), nodes()); !errors.Is(err, tc.want) {
					t.Errorf("placed: %+v, %v", p, err)
				}
			})
		})
	}
}

// While an external provisioner makes a volume on the selected node, no other is
// bound there.
func TestPlacingLeavesTheClaimToAnExternalProvisioner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("ext", waitForConsumer, provisionedBy("csi.example.com")), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("ext"))).withStorage()
		w.start()
		w.settle()
		if node, err := w.place(pvbuild.PodOf("data")); node != "node1" || err != nil {
			t.Fatalf("placed on %q, %v", node, err)
		}
		w.settle()
		w.create(pvbuild.NewPV("pv", "1Gi", pvbuild.Class("ext")))
		w.settle()
		p, err := w.controller.Place(t.Context(), pvbuild.PodOf("data"), nodes())
		if err != nil || p.Node != "node1" || len(p.Bind)+len(p.Provision) > 0 {
			t.Errorf("placed again: %+v, %v", p, err)
		}
	})
}

// A driver that tells its capacity is asked for no more than that, on no other node.
func TestPlacingHeedsTheCapacityOfADriver(t *testing.T) {
	capacity := func(class, size, largest string, topology *metav1.LabelSelector) *storagev1.CSIStorageCapacity {
		c := &storagev1.CSIStorageCapacity{StorageClassName: class, NodeTopology: topology}
		c.Namespace, c.Name = "csi", strings.ToLower("capacity-"+size+"-"+largest+"x")
		if size != "" {
			c.Capacity = new(resource.MustParse(size))
		}
		if largest != "" {
			c.MaximumVolumeSize = new(resource.MustParse(largest))
		}
		return c
	}
	driver := func(tells *bool) *storagev1.CSIDriver {
		d := &storagev1.CSIDriver{Spec: storagev1.CSIDriverSpec{StorageCapacity: tells}}
		d.Name = "csi.example.com"
		return d
	}
	everywhere, zoneB := &metav1.LabelSelector{}, &metav1.LabelSelector{MatchLabels: map[string]string{"zone": "b"}}
	for name, tc := range map[string]struct {
		objects []metav1.Object
		node    string // "": none
	}{
		"no such driver":           {nil, "node1"},
		"it does not say":          {[]metav1.Object{driver(nil)}, "node1"},
		"it tells none":            {[]metav1.Object{driver(new(false))}, "node1"},
		"nothing is published":     {[]metav1.Object{driver(new(true))}, ""},
		"enough everywhere":        {[]metav1.Object{driver(new(true)), capacity("ext", "1Gi", "", everywhere)}, "node1"},
		"enough in a zone":         {[]metav1.Object{driver(new(true)), capacity("ext", "1Gi", "", zoneB)}, "node2"},
		"too little":               {[]metav1.Object{driver(new(true)), capacity("ext", "1023Mi", "", everywhere)}, ""},
		"for no node":              {[]metav1.Object{driver(new(true)), capacity("ext", "1Gi", "", nil)}, ""},
		"another class'":           {[]metav1.Object{driver(new(true)), capacity("other", "1Gi", "", everywhere)}, ""},
		"none is so large":         {[]metav1.Object{driver(new(true)), capacity("ext", "9Gi", "1Mi", everywhere)}, ""},
		"some are so large":        {[]metav1.Object{driver(new(true)), capacity("ext", "1Mi", "1Gi", everywhere)}, "node1"},
		"too little but elsewhere": {[]metav1.Object{driver(new(true)), capacity("ext", "1Mi", "", everywhere), capacity("ext", "9Gi", "", zoneB)}, "node2"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storageClass("ext", waitForConsumer, provisionedBy("csi.example.com")), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("ext"))).withStorage()
				for _, o := range tc.objects {
					w.create(o)
				}
				w.start()
				w.settle()
				node, err := w.place(pvbuild.PodOf("data"))
				if node != tc.node || errors.Is(err, persistentvolume.ErrNoCapacity) != (tc.node == "") {
					t.Errorf("placed on %q, %v", node, err)
				}
			})
		})
	}
}

// A claim whose class the cache has not heard of is not bound as if it had none
// that waits.
func TestClassThatTheCacheHasNotHeardOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, localPV("pv", "1Gi", "node1"))
		w.start()
		w.settle()
		release := w.client.Hold("StorageClass")
		defer release()
		w.create(pvbuild.NewClaim("before", "2Gi", pvbuild.OfClass("local"))) // of which it is known that there is none
		w.settle()
		w.create(storageClass("local", waitForConsumer))
		w.create(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("local")))
		w.settle()
		w.wantClaim("data", v1.ClaimPending)
		if node, err := w.place(pvbuild.PodOf("data")); node != "node1" || err != nil {
			t.Errorf("placed on %q, %v", node, err)
		}
		w.settle()
		w.wantBound("data", "pv")
	})
}
