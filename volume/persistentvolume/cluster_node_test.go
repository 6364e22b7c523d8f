package persistentvolume_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// Where there is but one node, a claim that waits for no pod is not given what
// that node cannot reach.
func TestVolumesOfOtherNodesAreNotForTheOnlyOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("elsewhere", "1Gi", pvbuild.OnHost("node2")), pvbuild.NewPV("here", "2Gi", pvbuild.OnHost("node1")), pvbuild.NewPV("labelled", "3Gi", pvbuild.Affinity(pvbuild.Require("disk", v1.NodeSelectorOpExists))))
		w.config.NodeName = "node1"
		w.start()
		w.create(pvbuild.NewClaim("first", "1Gi"))
		w.settle()
		w.wantBound("first", "here")
		w.create(pvbuild.NewClaim("second", "1Gi"))
		w.settle()
		w.wantClaim("second", v1.ClaimPending)
		err := w.controller.Explain(types.NamespacedName{Namespace: "ops", Name: "second"})
		if err == nil || !strings.Contains(err.Error(), "not reachable from this node (elsewhere: not on node1; labelled: not on node1)") {
			t.Errorf("err = %v", err)
		}
		w.create(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: map[string]string{"disk": "ssd"}}})
		w.settle()
		w.wantBound("second", "labelled")
	})
}

func TestAClaimThatWaitsForAnExternalProvisionerSaysWhatDidNotFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", func(c *storagev1.StorageClass) { c.Provisioner = "example.com/elsewhere" }), pvbuild.NewPV("small", "1Ki", pvbuild.Class("fast")), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
		w.start()
		w.settle()
		err := w.controller.Explain(types.NamespacedName{Namespace: "ops", Name: "data"})
		if err == nil || !strings.Contains(err.Error(), "external provisioner example.com/elsewhere: too small (small: 1Ki of 1Gi)") {
			t.Errorf("err = %v", err)
		}
	})
}

// looked counts how often claims are looked at.
type looked struct {
	objects.Client
	claims atomic.Int64
}

func (l *looked) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	if ref.Kind == "PersistentVolumeClaim" {
		l.claims.Add(1)
	}
	return l.Client.Get(ctx, ref)
}

// A node changes every few seconds to say that it lives; claims are looked at for
// that only if it may reach other volumes, and never those that have one.
func TestANodeThatSaysThatItLivesHasNoClaimLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
		store := pvbuild.StoreOf(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("bound", "1Gi"), node)
		l := &looked{Client: store}
		c := persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: l, NodeName: "node1"})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		looks := func(change func(*v1.Node)) int64 {
			t.Helper()
			stored, err := objects.Get[*v1.Node](ctx, store, volume.NewObjectRef("Node", "", "node1"))
			if err != nil {
				t.Fatal(err)
			}
			next := stored.DeepCopy()
			change(next)
			before := l.claims.Load()
			if _, err := store.Update(ctx, next); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			return l.claims.Load() - before
		}
		time.Sleep(time.Second)
		for i := range 3 {
			if _, err := store.Create(ctx, pvbuild.NewClaim(fmt.Sprint("waits", i), "1Gi")); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		looks(func(n *v1.Node) { n.Annotations = map[string]string{"first": "change"} })
		for i := range 5 {
			if n := looks(func(n *v1.Node) { n.Annotations = map[string]string{"alive": fmt.Sprint(i)} }); n != 0 {
				t.Errorf("%d looks at claims since the node lives", n)
			}
		}
		if n := looks(func(n *v1.Node) { n.Labels = map[string]string{"disk": "ssd"} }); n != 3 {
			t.Errorf("%d looks at claims since the node has another label; three have no volume", n)
		}
	})
}
