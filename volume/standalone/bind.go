package standalone

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// UnboundClaims are the claims that could not be bound, with the reasons.
type UnboundClaims map[types.NamespacedName]error

// UsesClaims reports whether pods have volumes of claims.
func UsesClaims(pods []*v1.Pod) bool {
	return slices.ContainsFunc(pods, func(pod *v1.Pod) bool {
		return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
	})
}

// BindClaims applies manifests to the claims of a root directory and binds the
// pods' claims. A node never does that itself.
//
//   - Volumes that must be made for the claims are made, within timeout. Those of bound claims
//     that ask for more, or for other attributes, are changed as far as that is not the node's
//     work. The log says for whom it waits, and what is not changed and why: that is no error,
//     since the volume is what it was.
//   - Nothing is deleted or reclaimed: there may be other pods.
//   - It is an error if manifests are refused, or if a pod must not have a bound
//     claim. Then no pod must be mounted, because a node would trust the store.
func BindClaims(ctx context.Context, c ClaimsConfig, set *manifest.Set, pods []*v1.Pod, timeout time.Duration) (_ UnboundClaims, err error) {
	cluster, err := OpenClaims(ctx, c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	declared, err := set.Objects(ctx)
	if err != nil {
		return nil, err
	}
	if err := cluster.Apply(ctx, declared...); err != nil {
		return nil, err
	}
	_, stop := InBackground(ctx, cluster.Run)
	defer func() { err = errors.Join(err, stop()) }()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = cluster.Bind(ctx, pods...)
	failed, ok := errors.AsType[*embedded.BindError](err)
	if err != nil && !ok {
		return nil, err
	}
	awaitChanges(ctx, c, cluster, pods)
	if c.Bound != nil {
		if err := c.Bound(context.WithoutCancel(ctx), cluster); err != nil {
			return nil, err
		}
	}
	if failed == nil {
		return nil, nil
	}
	unbound := make(UnboundClaims)
	for _, claim := range failed.Unbound {
		if shownBound(ctx, cluster.Objects(), claim.Claim) {
			return nil, claim
		}
		unbound[claim.Claim] = claim.Err
	}
	return unbound, nil
}

// awaitChanges has the claims of pods get what they ask for beyond what they have.
func awaitChanges(ctx context.Context, c ClaimsConfig, cluster *embedded.Cluster, pods []*v1.Pod) {
	log := cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	var slow *time.Timer
	missing := cluster.AwaitChanges(ctx, func(claims []types.NamespacedName) {
		slow = time.AfterFunc(time.Second, func() { log.Warn("waiting for volumes to be changed as their claims ask", "claims", claims) })
	}, pods...)
	if slow != nil {
		slow.Stop()
	}
	for _, claim := range slices.SortedFunc(maps.Keys(missing), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }) {
		log.Warn("a claim does not get what it asks for; its volume is used as it is", "claim", claim, "error", missing[claim])
	}
}

// shownBound reports whether a node would mount the claim, because the manifests
// say that it is bound.
func shownBound(ctx context.Context, source objects.Source, name types.NamespacedName) bool {
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, source, volume.NewObjectRef("PersistentVolumeClaim", name.Namespace, name.Name))
	if err != nil {
		return false
	}
	pv, err := objects.Get[*v1.PersistentVolume](ctx, source, volume.NewObjectRef("PersistentVolume", "", claim.Spec.VolumeName))
	return err == nil && claimbinding.Check(claim, pv) == nil
}

// Explain replaces the node's error that a claim is not bound by the reason why
// it could not be bound.
func (u UnboundClaims) Explain(err error) error {
	unbound, ok := errors.AsType[*claimbinding.Error](err)
	if !ok || u[unbound.Claim] == nil {
		return err
	}
	own, ok := errors.AsType[*volume.Error](err)
	if !ok {
		return volume.NothingDone(u[unbound.Claim])
	}
	explained := *own
	explained.Err = volume.NothingDone(u[unbound.Claim])
	return &explained
}
