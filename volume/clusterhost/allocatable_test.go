package clusterhost_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

func TestAllocatableIsTheNodes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		a := clusterhost.NewAllocatable(w.source(), "node1")
		if _, err := a.GetAllocatable(t.Context()); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("without a node: %v", err)
		}
		w.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
		synctest.Wait()
		if _, err := a.GetAllocatable(t.Context()); err == nil {
			t.Error("a node that does not say it: no error")
		}
		n := &node{world: w}
		for _, memory := range []string{"1Gi", "2Gi"} {
			n.change(func(s *v1.NodeStatus) { s.Allocatable = v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)} })
			synctest.Wait()
			got, err := a.GetAllocatable(t.Context())
			if err != nil || got.Memory().String() != memory {
				t.Errorf("%v, %v", got, err)
			}
		}
		w.api.Asked()
		w.transport.SetDown(clustertest.ErrUnreachable)
		w.api.DropWatches()
		time.Sleep(time.Minute)
		for range 1000 {
			if _, err := a.GetAllocatable(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if asked := w.api.Asked(); len(asked) > 0 {
			t.Errorf("asked %v", asked)
		}
	})
}
