package clusterhost

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/volume"
)

const (
	// NodeIDAnnotation is the Node's annotation with its names in the drivers' words: a JSON
	// object of strings by the drivers' names.
	NodeIDAnnotation = "csi.volume.kubernetes.io/nodeid"
	// MigratedPluginsAnnotation is the CSINode's annotation with the in-tree plugins whose
	// volumes the node mounts by CSI drivers. The scheduler and the attach/detach controller
	// read it.
	MigratedPluginsAnnotation = "storage.alpha.kubernetes.io/migrated-plugins"
)

// ErrTopologyConflict says that a driver puts the node elsewhere than a label of its Node.
const ErrTopologyConflict = volume.Cause("the driver's topology contradicts a label of the node")

// CSINodeConfig is the configuration of [NewCSINode]; its zero value works.
type CSINodeConfig struct {
	// MigratedPlugins are the names of the in-tree plugins whose volumes are translated on
	// this node.
	MigratedPlugins []string
	// Logger is told of objects that are replaced; nil: nothing is logged.
	Logger *slog.Logger
}

// CSINode is a [volume.CSINodePublisher] over the cluster's API, for the drivers of one
// node. It is safe for concurrent use.
//
//   - CSINode.spec.drivers has an entry for each driver. The object belongs to the Node: one
//     of an earlier Node of that name is replaced, since it would be collected with it.
//   - An entry whose node ID or topology has changed is removed and entered again: the API
//     lets no more than the limit change.
//   - The Node's [NodeIDAnnotation] has each driver's node ID. What other drivers have there
//     stays.
//   - The driver's topology segments become labels of the Node. A label with another value
//     is [ErrTopologyConflict], and nothing is written. Labels stay after a driver has gone.
//   - After a conflict with another writer both are read again, four times at most, after 10,
//     50 and 250 ms.
type CSINode struct {
	clientset kubernetes.Interface
	node      string
	migrated  string
	logger    *slog.Logger
	writing   chan struct{} // holds a value while a call writes
}

var _ volume.CSINodePublisher = (*CSINode)(nil)

// NewCSINode returns a publisher for a node. It asks nothing yet, and keeps no slice.
func NewCSINode(clientset kubernetes.Interface, nodeName string, config CSINodeConfig) *CSINode {
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	migrated := slices.Compact(slices.Sorted(slices.Values(config.MigratedPlugins)))
	return &CSINode{clientset: clientset, node: nodeName, migrated: strings.Join(migrated, ","), logger: config.Logger, writing: make(chan struct{}, 1)}
}

// Ensure makes the CSINode with the annotation of migrated plugins. A node should call it
// before it says that it is ready: until then a scheduler does not know how many volumes
// it takes. It is idempotent. A Node that does not exist is an error.
func (c *CSINode) Ensure(ctx context.Context) error {
	return c.write(ctx, "make CSINode", func(ctx context.Context) error {
		_, err := c.changeCSINode(ctx, func(*storagev1.CSINode) bool { return false })
		return err
	})
}

// PublishDriver implements [volume.CSINodePublisher].
func (c *CSINode) PublishDriver(ctx context.Context, d storagev1.CSINodeDriver, segments map[string]string) error {
	if d.Name == "" || d.NodeID == "" {
		return volume.Invalid("nodeID", "driver %q gives this node no name (node ID %q)", d.Name, d.NodeID)
	}
	return c.write(ctx, "publish driver "+d.Name, func(ctx context.Context) error {
		err := c.changeNode(ctx, func(node *v1.Node) error {
			if err := addSegments(node, d.Name, segments); err != nil {
				return err
			}
			return setNodeID(node, d.Name, d.NodeID)
		})
		if err != nil {
			return err
		}
		return c.enter(ctx, d)
	})
}

// WithdrawDriver implements [volume.CSINodePublisher]. Of a Node that does not exist there
// is nothing to be removed.
func (c *CSINode) WithdrawDriver(ctx context.Context, driver string) error {
	return c.write(ctx, "withdraw driver "+driver, func(ctx context.Context) error {
		_, err := c.changeCSINode(ctx, func(n *storagev1.CSINode) bool { return remove(n, driver) })
		if err == nil {
			err = c.changeNode(ctx, func(node *v1.Node) error { return setNodeID(node, driver, "") })
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// WithdrawAll withdraws the drivers that earlier agents of the node have published: for an agent
// that takes none. It makes no CSINode.
func (c *CSINode) WithdrawAll(ctx context.Context) error {
	return c.write(ctx, "withdraw all drivers", func(ctx context.Context) error {
		found, err := c.clientset.StorageV1().CSINodes().Get(ctx, c.node, metav1.GetOptions{})
		if err == nil && len(found.Spec.Drivers) > 0 {
			_, err = c.changeCSINode(ctx, func(n *storagev1.CSINode) bool {
				had := len(n.Spec.Drivers) > 0
				n.Spec.Drivers = nil
				return had
			})
		}
		if err == nil || apierrors.IsNotFound(err) {
			err = c.changeNode(ctx, func(node *v1.Node) error { delete(node.Annotations, NodeIDAnnotation); return nil })
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// write does one call at a time, again after conflicts.
func (c *CSINode) write(ctx context.Context, what string, f func(context.Context) error) error {
	select {
	case c.writing <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-c.writing }()
	pause := firstConflict
	for try := 1; ; try++ {
		err := bounded(ctx, f)
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) || try == 4 || !pausedFor(ctx, pause) {
			return fmt.Errorf("%s of node %s: %w", what, c.node, err)
		}
		pause *= 5
	}
}

func bounded(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	return f(ctx)
}

// enter makes the driver's entry what it should be.
func (c *CSINode) enter(ctx context.Context, d storagev1.CSINodeDriver) error {
	d.TopologyKeys = slices.Sorted(slices.Values(d.TopologyKeys))
	another := false // entry must go first
	put := func(n *storagev1.CSINode) bool {
		i := indexOf(n, d.Name)
		if i < 0 {
			n.Spec.Drivers = append(n.Spec.Drivers, d)
			return true
		}
		was := &n.Spec.Drivers[i]
		if another = was.NodeID != d.NodeID || !slices.Equal(was.TopologyKeys, d.TopologyKeys); another {
			return remove(n, d.Name)
		}
		if limitOf(was) == limitOf(&d) {
			return false
		}
		was.Allocatable = d.Allocatable
		return true
	}
	_, err := c.changeCSINode(ctx, put)
	if apierrors.IsInvalid(err) { // an API server before 1.33 lets no limit change
		another = true
		_, err = c.changeCSINode(ctx, func(n *storagev1.CSINode) bool { return remove(n, d.Name) })
	}
	if err == nil && another {
		_, err = c.changeCSINode(ctx, put)
	}
	return err
}

// limitOf is -1 for none.
func limitOf(d *storagev1.CSINodeDriver) int32 {
	if d.Allocatable == nil || d.Allocatable.Count == nil {
		return -1
	}
	return *d.Allocatable.Count
}

func indexOf(n *storagev1.CSINode, driver string) int {
	return slices.IndexFunc(n.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
}

func remove(n *storagev1.CSINode, driver string) bool {
	i := indexOf(n, driver)
	if i >= 0 {
		n.Spec.Drivers = slices.Delete(n.Spec.Drivers, i, i+1)
	}
	return i >= 0
}

// changeCSINode changes the Node's own CSINode, and makes it if it is missing. It writes
// only what has changed.
func (c *CSINode) changeCSINode(ctx context.Context, change func(*storagev1.CSINode) bool) (*storagev1.CSINode, error) {
	node, err := c.clientset.CoreV1().Nodes().Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	api := c.clientset.StorageV1().CSINodes()
	found, err := api.Get(ctx, c.node, metav1.GetOptions{})
	if err == nil && isOfAnother(found, node) {
		c.logger.Warn("the CSINode of an earlier node is replaced", "node", c.node, "csiNodeUID", found.UID)
		err = api.Delete(ctx, c.node, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &found.UID, ResourceVersion: &found.ResourceVersion}})
		if err == nil || apierrors.IsNotFound(err) {
			err = apierrors.NewNotFound(storagev1.Resource("csinodes"), c.node)
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		made := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: c.node}}
		c.own(made, node)
		change(made)
		return api.Create(ctx, made, metav1.CreateOptions{})
	case err != nil:
		return nil, err
	}
	next := found.DeepCopy()
	owned := c.own(next, node)
	if changed := change(next); !changed && !owned {
		return found, nil
	}
	return api.Update(ctx, next, metav1.UpdateOptions{})
}

// isOfAnother reports whether a CSINode belongs to another Node of the same name.
func isOfAnother(n *storagev1.CSINode, node *v1.Node) bool {
	return slices.ContainsFunc(n.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Node" && o.UID != node.UID })
}

// own adds what every CSINode has, and reports whether something was missing.
func (c *CSINode) own(n *storagev1.CSINode, node *v1.Node) (changed bool) {
	if !slices.ContainsFunc(n.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == node.UID }) {
		n.OwnerReferences = append(n.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID})
		changed = true
	}
	if n.Annotations[MigratedPluginsAnnotation] == c.migrated {
		return changed
	}
	n.Annotations = maps.Clone(n.Annotations)
	if c.migrated == "" {
		delete(n.Annotations, MigratedPluginsAnnotation)
		return true
	}
	if n.Annotations == nil {
		n.Annotations = make(map[string]string)
	}
	n.Annotations[MigratedPluginsAnnotation] = c.migrated
	return true
}

// changeNode changes the Node's annotations and labels by a patch that fails if the Node has
// changed meanwhile. It writes only what has changed.
func (c *CSINode) changeNode(ctx context.Context, change func(*v1.Node) error) error {
	api := c.clientset.CoreV1().Nodes()
	node, err := api.Get(ctx, c.node, metav1.GetOptions{})
	if err != nil {
		return err
	}
	next := node.DeepCopy()
	if err := change(next); err != nil {
		return err
	}
	annotations, labels := difference(node.Annotations, next.Annotations), difference(node.Labels, next.Labels)
	if len(annotations)+len(labels) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion, "annotations": annotations, "labels": labels}})
	if err != nil {
		return err
	}
	_, err = api.Patch(ctx, c.node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// difference is a merge patch from one map to another.
func difference(from, to map[string]string) map[string]any {
	patch := make(map[string]any)
	for key, value := range to {
		if was, has := from[key]; !has || was != value {
			patch[key] = value
		}
	}
	for key := range from {
		if _, stays := to[key]; !stays {
			patch[key] = nil
		}
	}
	return patch
}

// addSegments labels the node with its place in a driver's topology.
func addSegments(node *v1.Node, driver string, segments map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		if is, has := node.Labels[key]; has && is != segments[key] {
			return &volume.Failure{Cause: ErrTopologyConflict, Subject: node.Name,
				What: fmt.Sprintf("driver %s says that node %s has %s=%q, and its label says %q", driver, node.Name, key, segments[key], is),
				Next: "correct the label or the driver's configuration"}
		}
		if node.Labels == nil {
			node.Labels = make(map[string]string)
		}
		node.Labels[key] = segments[key]
	}
	return nil
}

// setNodeID changes a driver's part of the annotation; an empty id removes it.
func setNodeID(node *v1.Node, driver, id string) error {
	ids := make(map[string]string)
	if text := node.Annotations[NodeIDAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &ids); err != nil {
			return fmt.Errorf("the annotation %s of node %s is no JSON object of strings, correct or remove it: %w", NodeIDAnnotation, node.Name, err)
		}
	}
	if ids == nil { // it was null
		ids = make(map[string]string)
	}
	if ids[driver] == id {
		return nil
	}
	if ids[driver] = id; id == "" {
		delete(ids, driver)
	}
	if len(ids) == 0 {
		delete(node.Annotations, NodeIDAnnotation)
		return nil
	}
	text, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	if node.Annotations == nil {
		node.Annotations = make(map[string]string)
	}
	node.Annotations[NodeIDAnnotation] = string(text)
	return nil
}
