package main

import (
	"context"
	"errors"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
)

// unboundClaims are the claims that could not be bound, and why.
type unboundClaims map[types.NamespacedName]error

// usesClaims reports whether pods have volumes of claims.
func usesClaims(pods []*v1.Pod) bool {
	return slices.ContainsFunc(pods, func(pod *v1.Pod) bool {
		return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
	})
}

// bindClaims applies manifests to the claims of a root directory and binds those
// of the pods, which a node never does itself; volumes that are to be made for
// them are made, for no longer than timeout. Nothing is deleted or reclaimed:
// these pods are not all there are. Manifests that are refused are an error, and
// so is a pod that must not have a claim that is bound: no pod must be mounted
// then, for a node would believe what is stored.
func bindClaims(ctx context.Context, c clusterConfig, set *manifest.Set, pods []*v1.Pod, timeout time.Duration) (_ unboundClaims, err error) {
	cluster, err := openCluster(ctx, c)
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
	_, stop := inBackground(ctx, cluster.Run)
	defer func() { err = errors.Join(err, stop()) }()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err = cluster.Bind(ctx, pods...)
	failed, ok := errors.AsType[*embedded.BindError](err)
	if err != nil && !ok {
		return nil, err
	}
	if c.bound != nil {
		if err := c.bound(context.WithoutCancel(ctx), cluster); err != nil {
			return nil, err
		}
	}
	if failed == nil {
		return nil, nil
	}
	unbound := make(unboundClaims)
	for _, claim := range failed.Unbound {
		if shownBound(ctx, cluster.Objects(), claim.Claim) {
			return nil, claim
		}
		unbound[claim.Claim] = claim.Err
	}
	return unbound, nil
}

// shownBound reports whether a node would mount the claim, because the
// manifests say that it is bound.
func shownBound(ctx context.Context, source objects.Source, name types.NamespacedName) bool {
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, source, volume.NewObjectRef("PersistentVolumeClaim", name.Namespace, name.Name))
	if err != nil {
		return false
	}
	pv, err := objects.Get[*v1.PersistentVolume](ctx, source, volume.NewObjectRef("PersistentVolume", "", claim.Spec.VolumeName))
	return err == nil && volume.CheckBinding(claim, pv) == nil
}

// explain puts the reason why a claim could not be bound in the place of the
// node's finding that it is not.
func (u unboundClaims) explain(err error) error {
	unbound, ok := errors.AsType[*volume.BindingError](err)
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
