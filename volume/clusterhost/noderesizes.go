package clusterhost

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
)

// NodeResizes is a [volume.NodeResizeStartReporter] over the cluster's API: it writes the status of
// claims as the kubelet does. It keeps nothing, and is safe for concurrent use.
//
//   - It changes the size that the claim has, and the states and conditions of its growth, and
//     only if they are not what they should be.
//   - It is a patch, so that fields stay that this client does not know. It fails if the claim
//     has changed since it was read. Then it is read again, four times at most, after 10, 50
//     and 250 ms.
//   - A request has half a minute.
type NodeResizes struct{ clientset kubernetes.Interface }

var _ volume.NodeResizeStartReporter = NodeResizes{}

// NewNodeResizes returns a reporter that asks nothing yet.
func NewNodeResizes(clientset kubernetes.Interface) NodeResizes { return NodeResizes{clientset} }

// ReportNodeResize implements [volume.NodeResizeReporter].
func (r NodeResizes) ReportNodeResize(ctx context.Context, claim types.NamespacedName, uid types.UID, size resource.Quantity, failed error) error {
	return r.change(ctx, claim, uid, func(s *v1.PersistentVolumeClaimStatus) bool {
		return pvapi.RecordNodeResize(s, size, failed, time.Now())
	})
}

// ReportNodeResizeStarted implements [volume.NodeResizeStartReporter].
func (r NodeResizes) ReportNodeResizeStarted(ctx context.Context, claim types.NamespacedName, uid types.UID) error {
	return r.change(ctx, claim, uid, pvapi.RecordNodeResizeStarted)
}

// change changes a claim's status, and writes it if record says that it has.
func (r NodeResizes) change(ctx context.Context, claim types.NamespacedName, uid types.UID, record func(*v1.PersistentVolumeClaimStatus) bool) error {
	pause := firstConflict
	for try := 1; ; try++ {
		err := bounded(ctx, func(ctx context.Context) error { return r.try(ctx, claim, uid, record) })
		if err == nil {
			return nil
		}
		if !apierrors.IsConflict(err) || try == 4 || !pausedFor(ctx, pause) {
			return fmt.Errorf("report the growth of claim %s: %w", claim, err)
		}
		pause *= 5
	}
}

func (r NodeResizes) try(ctx context.Context, name types.NamespacedName, uid types.UID, record func(*v1.PersistentVolumeClaimStatus) bool) error {
	claims := r.clientset.CoreV1().PersistentVolumeClaims(name.Namespace)
	claim, err := claims.Get(ctx, name.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && claim.UID != uid:
		return nil
	case err != nil:
		return err
	}
	next := claim.Status.DeepCopy()
	if !record(next) {
		return nil
	}
	patch, err := json.Marshal(resizePatch(claim, next))
	if err != nil {
		return err
	}
	_, err = claims.Patch(ctx, name.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// resizePatch is a merge patch: null removes an entry, and a list replaces the whole list.
func resizePatch(claim *v1.PersistentVolumeClaim, next *v1.PersistentVolumeClaimStatus) map[string]any {
	var state any // null
	if s, ok := next.AllocatedResourceStatuses[v1.ResourceStorage]; ok {
		state = s
	}
	size := make(map[v1.ResourceName]any)
	if has, ok := next.Capacity[v1.ResourceStorage]; ok {
		size[v1.ResourceStorage] = has
	}
	return map[string]any{
		"metadata": map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion},
		"status": map[string]any{
			"capacity":                  size,
			"allocatedResourceStatuses": map[v1.ResourceName]any{v1.ResourceStorage: state},
			"conditions":                next.Conditions,
		},
	}
}
