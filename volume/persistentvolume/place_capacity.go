package persistentvolume

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

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

// roomOf asks the API, since what was made elsewhere a moment ago is what counts.
func (c *Controller) roomOf(ctx context.Context, class *storagev1.StorageClass) (room, error) {
	if !c.isExternal(class.Provisioner) {
		return room{}, nil
	}
	live := objects.Live(c.objects)
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
