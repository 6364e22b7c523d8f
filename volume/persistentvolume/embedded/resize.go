package embedded

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

var _ volume.NodeResizeStartReporter = (*Cluster)(nil)

// ReportNodeResize implements [volume.NodeResizeReporter]: it enters how a volume has grown on
// the node into its claim's status, and returns when that is on disk. After Close it is an error.
func (c *Cluster) ReportNodeResize(ctx context.Context, claim types.NamespacedName, uid types.UID, size resource.Quantity, failed error) error {
	return recordResize(ctx, c.objects, claim, uid, func(s *v1.PersistentVolumeClaimStatus) bool {
		return pvapi.RecordNodeResize(s, size, failed, time.Now())
	})
}

// ReportNodeResizeStarted implements [volume.NodeResizeStartReporter], as ReportNodeResize does.
func (c *Cluster) ReportNodeResizeStarted(ctx context.Context, claim types.NamespacedName, uid types.UID) error {
	return recordResize(ctx, c.objects, claim, uid, pvapi.RecordNodeResizeStarted)
}

// recordResize changes a claim's status, and writes it if record says that it has.
func recordResize(ctx context.Context, store objects.Client, claim types.NamespacedName, uid types.UID, record func(*v1.PersistentVolumeClaimStatus) bool) error {
	err := retry.Do(ctx, objects.ErrConflict, func() error {
		stored, err := objects.Get[*v1.PersistentVolumeClaim](ctx, store, pvapi.ClaimRef(claim))
		if errors.Is(err, volume.ErrNotFound) || err == nil && stored.UID != uid {
			return nil
		}
		if err != nil {
			return err
		}
		next := stored.DeepCopy()
		if !record(&next.Status) {
			return nil
		}
		_, err = store.UpdateStatus(ctx, next)
		return err
	})
	if err != nil {
		return fmt.Errorf("report the growth of claim %s: %w", claim, err)
	}
	return nil
}
