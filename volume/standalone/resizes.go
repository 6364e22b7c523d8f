package standalone

import (
	"context"
	"errors"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// Resizes reports to the claims of a root directory how volumes grew on its node, once the claims
// are open: a node starts before them. Its zero value has no claims yet, which is an error that
// the node's manager retries. Its methods may be called concurrently.
type Resizes struct {
	claims atomic.Pointer[embedded.Cluster]
}

var _ volume.NodeResizeStartReporter = (*Resizes)(nil)

// Use has the reports go to these claims from now on.
func (r *Resizes) Use(claims *embedded.Cluster) { r.claims.Store(claims) }

// ReportNodeResize implements [volume.NodeResizeReporter].
func (r *Resizes) ReportNodeResize(ctx context.Context, claim types.NamespacedName, uid types.UID, size resource.Quantity, err error) error {
	claims := r.claims.Load()
	if claims == nil {
		return errNotOpen
	}
	return claims.ReportNodeResize(ctx, claim, uid, size, err)
}

// ReportNodeResizeStarted implements [volume.NodeResizeStartReporter].
func (r *Resizes) ReportNodeResizeStarted(ctx context.Context, claim types.NamespacedName, uid types.UID) error {
	claims := r.claims.Load()
	if claims == nil {
		return errNotOpen
	}
	return claims.ReportNodeResizeStarted(ctx, claim, uid)
}

var errNotOpen = errors.New("the claims of this root directory are not open yet")

// ClosedClaims is a [volume.NodeResizeReporter] for a node that has its claims open only while
// they are bound ([BindClaims]): each report opens them, and closes them again. So it does not
// tell that a volume begins to grow. The Store is not used. A process that has them is waited
// for, as [OpenClaims] does.
type ClosedClaims ClaimsConfig

// ReportNodeResize implements [volume.NodeResizeReporter].
func (c ClosedClaims) ReportNodeResize(ctx context.Context, claim types.NamespacedName, uid types.UID, size resource.Quantity, failed error) (err error) {
	config := ClaimsConfig(c)
	config.Store = nil
	claims, err := OpenClaims(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, claims.Close()) }()
	return claims.ReportNodeResize(ctx, claim, uid, size, failed)
}
