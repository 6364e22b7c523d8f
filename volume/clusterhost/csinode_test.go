package clusterhost_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

func (w *world) csiNode() *storagev1.CSINode {
	w.t.Helper()
	n, err := w.clientset.StorageV1().CSINodes().Get(w.t.Context(), "node1", metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// node1 is a Node with a label and what another driver has there.
func node1() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: map[string]string{"zone": "a"},
		Annotations: map[string]string{clusterhost.NodeIDAnnotation: `{"other":"n"}`}}}
}

func entry(name, id string, count *int32, keys ...string) storagev1.CSINodeDriver {
	d := storagev1.CSINodeDriver{Name: name, NodeID: id, TopologyKeys: keys}
	if count != nil {
		d.Allocatable = &storagev1.VolumeNodeResources{Count: count}
	}
	return d
}

func mustAll(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// A driver comes, changes its limit, its name for the node, and goes.
func TestCSINodeOfADriver(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.add(node1())
		c := clusterhost.NewCSINode(w.clientset, "node1", clusterhost.CSINodeConfig{MigratedPlugins: []string{"kubernetes.io/gce-pd", "kubernetes.io/aws-ebs", "kubernetes.io/gce-pd"}})
		mustAll(t, c.Ensure(ctx), c.Ensure(ctx))
		n := w.csiNode()
		owner := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node1", UID: stored[*v1.Node](w, "Node", "", "node1").UID}}
		if !slices.Equal(n.OwnerReferences, owner) || n.Annotations[clusterhost.MigratedPluginsAnnotation] != "kubernetes.io/aws-ebs,kubernetes.io/gce-pd" || len(n.Spec.Drivers) > 0 {
			t.Errorf("made is %+v", n)
		}
		mustAll(t, c.PublishDriver(ctx, entry("d", "id1", new(int32(8)), "zone", "rack"), map[string]string{"zone": "a", "rack": "7"}))
		d := w.csiNode().Spec.Drivers[0]
		if d.NodeID != "id1" || *d.Allocatable.Count != 8 || !slices.Equal(d.TopologyKeys, []string{"rack", "zone"}) {
			t.Errorf("the entry is %+v", d)
		}
		node := stored[*v1.Node](w, "Node", "", "node1")
		if node.Annotations[clusterhost.NodeIDAnnotation] != `{"d":"id1","other":"n"}` || node.Labels["rack"] != "7" {
			t.Errorf("the node has %v, %v", node.Annotations, node.Labels)
		}
		w.api.Asked()
		mustAll(t, c.PublishDriver(ctx, entry("d", "id1", new(int32(8)), "rack", "zone"), map[string]string{"zone": "a", "rack": "7"}))
		if n := w.asked("put") + w.asked("patch"); n > 0 {
			t.Errorf("what has not changed is written %d times", n)
		}
		mustAll(t, c.PublishDriver(ctx, entry("d", "id1", new(int32(9)), "rack", "zone"), nil), c.PublishDriver(ctx, entry("d", "id2", nil), nil))
		if d := w.csiNode().Spec.Drivers; len(d) != 1 || d[0].NodeID != "id2" || d[0].Allocatable != nil || len(d[0].TopologyKeys) > 0 {
			t.Errorf("the entries are %+v", d)
		}
		mustAll(t, c.WithdrawDriver(ctx, "d"), c.WithdrawDriver(ctx, "d"), c.WithdrawDriver(ctx, "other"))
		node = stored[*v1.Node](w, "Node", "", "node1")
		if _, has := node.Annotations[clusterhost.NodeIDAnnotation]; has || node.Labels["rack"] != "7" || len(w.csiNode().Spec.Drivers) > 0 {
			t.Errorf("left are %v, %v and %v", node.Annotations, node.Labels, w.csiNode().Spec.Drivers)
		}
	})
}

// An agent without drivers takes back what an earlier one has published, and makes nothing.
func TestCSINodeWithoutDrivers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		c := clusterhost.NewCSINode(w.clientset, "node1", clusterhost.CSINodeConfig{})
		mustAll(t, c.WithdrawAll(ctx)) // there is no Node
		w.add(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
		mustAll(t, c.WithdrawAll(ctx))
		if n := w.asked("post") + w.asked("put") + w.asked("patch"); n > 0 {
			t.Errorf("%d writes where there is nothing", n)
		}
		mustAll(t, c.PublishDriver(ctx, entry("a", "id1", nil, "zone"), map[string]string{"zone": "z"}), c.PublishDriver(ctx, entry("b", "id2", nil), nil))
		mustAll(t, c.WithdrawAll(ctx), c.WithdrawAll(ctx))
		node := stored[*v1.Node](w, "Node", "", "node1")
		if _, annotated := node.Annotations[clusterhost.NodeIDAnnotation]; annotated || len(w.csiNode().Spec.Drivers) > 0 {
			t.Errorf("left: %v, %v", node.Annotations, w.csiNode().Spec.Drivers)
		}
		if node.Labels["zone"] != "z" {
			t.Errorf("the labels are %v: they stay", node.Labels)
		}
	})
}

func TestCSINodeRefuses(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		c := clusterhost.NewCSINode(w.clientset, "node1", clusterhost.CSINodeConfig{})
		if err := c.PublishDriver(t.Context(), entry("d", "id", nil), nil); !apierrors.IsNotFound(err) {
			t.Errorf("without a node: %v", err)
		}
		mustAll(t, c.WithdrawDriver(t.Context(), "d"))
		w.add(node1())
		if err := c.PublishDriver(t.Context(), entry("d", "", nil), nil); err == nil {
			t.Error("a node without a name is published")
		}
		err := c.PublishDriver(t.Context(), entry("d", "id", nil, "rack", "zone"), map[string]string{"rack": "7", "zone": "b"})
		if !errors.Is(err, clusterhost.ErrTopologyConflict) {
			t.Errorf("another zone: %v", err)
		}
		if is := stored[*v1.Node](w, "Node", "", "node1"); is.Labels["rack"] != "" || is.Annotations[clusterhost.NodeIDAnnotation] != `{"other":"n"}` {
			t.Errorf("written all the same: %v, %v", is.Labels, is.Annotations)
		}
		if _, err := w.clientset.StorageV1().CSINodes().Get(t.Context(), "node1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("there is a CSINode: %v", err)
		}
	})
}

// The CSINode of an earlier node of this name goes with that node, so it is replaced. One
// that somebody made is taken over with what it has.
func TestForeignCSINode(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx, api := t.Context(), w.clientset.StorageV1().CSINodes()
		w.add(node1())
		foreign := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "node1", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "node1", UID: "uid1"}}}}
		foreign.Spec.Drivers = []storagev1.CSINodeDriver{entry("gone", "id0", nil)}
		made, err := api.Create(ctx, foreign, metav1.CreateOptions{})
		mustAll(t, err)
		c := clusterhost.NewCSINode(w.clientset, "node1", clusterhost.CSINodeConfig{})
		mustAll(t, c.PublishDriver(ctx, entry("d", "id", nil), nil))
		n := w.csiNode()
		if n.UID == made.UID || len(n.Spec.Drivers) != 1 || n.Spec.Drivers[0].Name != "d" || n.OwnerReferences[0].UID == "uid1" {
			t.Errorf("it is %+v", n)
		}
		n.OwnerReferences, n.Spec.Drivers = nil, append(n.Spec.Drivers, entry("beside", "id", nil))
		_, err = api.Update(ctx, n, metav1.UpdateOptions{})
		mustAll(t, err, c.Ensure(ctx))
		if n := w.csiNode(); len(n.Spec.Drivers) != 2 || len(n.OwnerReferences) != 1 {
			t.Errorf("it is %+v", n)
		}
	})
}

// Other writers are met: what they wrote stays, four attempts are made.
func TestCSINodeConflicts(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.add(node1())
		c := clusterhost.NewCSINode(w.clientset, "node1", clusterhost.CSINodeConfig{})
		n := 0
		label := func() {
			n++
			node := stored[*v1.Node](w, "Node", "", "node1").DeepCopy()
			node.Labels["n"] = string(rune('0' + n))
			w.api.Direct(t, http.MethodPut, node)
		}
		remove := w.transport.Inject(apiFault{Match: on("patch", "Node"), Nth: 1, Hook: label}, apiFault{Match: on("patch", "Node"), Nth: 2, Hook: label})
		mustAll(t, c.PublishDriver(ctx, entry("d", "id", nil), nil))
		remove()
		if node := stored[*v1.Node](w, "Node", "", "node1"); node.Labels["n"] != "2" || node.Annotations[clusterhost.NodeIDAnnotation] != `{"d":"id","other":"n"}` {
			t.Errorf("the node has %v, %v", node.Labels, node.Annotations)
		}
		defer w.transport.Inject(apiFault{Match: on("patch", "Node"), Hook: label})()
		w.api.Asked()
		if err := c.PublishDriver(ctx, entry("e", "id", nil), nil); !apierrors.IsConflict(err) || w.asked("patch Node") != 4 {
			t.Errorf("a conflict each time: %v", err)
		}
	})
}

// An API server that lets no entry change gets it removed and entered again.
func TestCSINodeLimitOfAnOldAPIServer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		ctx := t.Context()
		w.add(node1())
		c := clusterhost.NewCSINode(w.clientset, "node1", clusterhost.CSINodeConfig{})
		mustAll(t, c.PublishDriver(ctx, entry("d", "id", new(int32(1))), nil))
		refused := false
		w.api.Refuse(func(r *http.Request) *metav1.Status {
			if r.Method != http.MethodPut || refused {
				return nil
			}
			refused = true
			status := apierrors.NewInvalid(storagev1.SchemeGroupVersion.WithKind("CSINode").GroupKind(), "node1", nil).Status()
			return &status
		})
		mustAll(t, c.PublishDriver(ctx, entry("d", "id", new(int32(2))), nil))
		if d := w.csiNode().Spec.Drivers; len(d) != 1 || *d[0].Allocatable.Count != 2 || !refused {
			t.Errorf("the entries are %+v", d)
		}
	})
}

// A call that waits for another one ends with its context, and one whose API hangs after
// half a minute.
func TestCSINodeHangs(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.add(node1())
		c := clusterhost.NewCSINode(w.clientset, "node1", clusterhost.CSINodeConfig{})
		asked := make(chan struct{}, 1)
		defer w.transport.Inject(apiFault{Match: func(r clustertest.Request) bool { return r.Kind.Kind == "Node" }, Hook: func() { asked <- struct{}{} }, Release: make(chan struct{})})()
		first := make(chan error, 1)
		go func() { first <- c.Ensure(context.Background()) }()
		<-asked
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := c.WithdrawDriver(ctx, "d"); !errors.Is(err, context.Canceled) {
			t.Errorf("waiting: %v", err)
		}
		if err := <-first; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("hanging: %v", err)
		}
	})
}
