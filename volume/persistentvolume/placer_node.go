package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// isAllowedOn reports whether a class lets its volumes be made for a node.
func isAllowedOn(class *storagev1.StorageClass, node *v1.Node) bool {
	return len(class.AllowedTopologies) == 0 || slices.ContainsFunc(class.AllowedTopologies, func(term v1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchLabelExpressions, func(e v1.TopologySelectorLabelRequirement) bool {
			value, ok := node.Labels[e.Key]
			return !ok || !slices.Contains(e.Values, value)
		})
	})
}

// notMadeOn adds to why a claim has found no volume that its class makes none for
// the node.
func notMadeOn(why error, class *storagev1.StorageClass, node *v1.Node) error {
	reason := fmt.Errorf("%w: storage class %q makes volumes only for nodes with %s, which %q is not: label the node, or make the class anew with other allowedTopologies",
		errorOf(why), class.Name, topologiesOf(class), node.Name)
	unbound, ok := errors.AsType[*index.UnboundError](why)
	if !ok {
		return reason
	}
	there := *unbound
	there.Err = reason
	return &there
}

// errorOf returns what an [index.UnboundError] holds, or else the error itself.
func errorOf(why error) error {
	if unbound, ok := errors.AsType[*index.UnboundError](why); ok {
		return unbound.Err
	}
	return why
}

func topologiesOf(class *storagev1.StorageClass) string {
	terms := make([]string, 0, len(class.AllowedTopologies))
	for _, term := range class.AllowedTopologies {
		labels := make([]string, 0, len(term.MatchLabelExpressions))
		for _, e := range term.MatchLabelExpressions {
			labels = append(labels, fmt.Sprintf("%s in (%s)", e.Key, strings.Join(e.Values, ", ")))
		}
		terms = append(terms, strings.Join(labels, " and "))
	}
	return strings.Join(terms, ", or ")
}

const (
	kindDriver   = "CSIDriver"
	kindCapacity = "CSIStorageCapacity"
)

// ErrNoCapacity says that a claim's driver has published no capacity as large as the
// claim for a node (KEP-1472).
var ErrNoCapacity = errors.New("the driver has not enough capacity there")

// room is the capacity that the driver of a class has published; told is false for a
// driver that publishes none.
type room struct {
	told       bool
	capacities []*storagev1.CSIStorageCapacity
}

// roomOf asks the API, since storage made elsewhere a moment ago counts.
func (c *placer) roomOf(ctx context.Context, class *storagev1.StorageClass) (room, error) {
	if !c.isExternal(class.Provisioner) {
		return room{}, nil
	}
	live := objects.Live(c.cluster.objects)
	driver, err := objects.Get[*storagev1.CSIDriver](ctx, live, volume.NewObjectRef(kindDriver, "", class.Provisioner))
	if _, unknown := errors.AsType[*objects.UnknownKindError](err); unknown || errors.Is(err, volume.ErrNotFound) {
		return room{}, nil
	}
	if err != nil {
		return room{}, fmt.Errorf("look whether driver %q tells its capacity: %w", class.Provisioner, err)
	}
	if told := driver.Spec.StorageCapacity; told == nil || !*told {
		return room{}, nil
	}
	capacities, err := objects.List[*storagev1.CSIStorageCapacity](ctx, live, kindCapacity, metav1.NamespaceAll)
	if err != nil {
		return room{}, fmt.Errorf("look for the capacity of driver %q: %w", class.Provisioner, err)
	}
	return room{told: true, capacities: capacities}, nil
}

// check refuses a node for which the driver has told no capacity that is enough.
func (r room) check(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, node *v1.Node) error {
	size, asked := claim.Spec.Resources.Requests[v1.ResourceStorage]
	if !r.told || !asked {
		return nil
	}
	for _, capacity := range r.capacities {
		// All that is free may be more than one volume can be.
		limit := capacity.MaximumVolumeSize
		if limit == nil {
			limit = capacity.Capacity
		}
		if capacity.StorageClassName != class.Name || limit == nil || limit.Cmp(size) < 0 {
			continue
		}
		if reaches, err := isReachable(capacity, node); err != nil || reaches {
			return err
		}
	}
	return fmt.Errorf("%w: no CSIStorageCapacity of storage class %q that covers node %q is of %s; free storage of driver %q, or ask for less",
		ErrNoCapacity, class.Name, node.Name, size.String(), class.Provisioner)
}

// isReachable reports whether the storage is there for a node. Without a topology it
// is for none.
func isReachable(capacity *storagev1.CSIStorageCapacity, node *v1.Node) (bool, error) {
	if capacity.NodeTopology == nil {
		return false, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(capacity.NodeTopology)
	if err != nil {
		return false, fmt.Errorf("the nodeTopology of CSIStorageCapacity \"%s/%s\": %w", capacity.Namespace, capacity.Name, err)
	}
	return selector.Matches(labels.Set(node.Labels)), nil
}
