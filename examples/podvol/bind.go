package main

import (
	"context"
	"errors"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// unboundClaims are the claims that could not be bound, and why.
type unboundClaims map[types.NamespacedName]error

// bindClaims binds the pods' claims, which a node never does itself, and
// records the bindings below the root directory. A claim that is recorded
// otherwise than the manifests say is an error: no pod must be mounted then.
func bindClaims(ctx context.Context, rootDir string, set *manifest.Set, pods []*v1.Pod) (unboundClaims, error) {
	binder := &persistentvolume.Binder{
		Objects:   set.Store,
		LedgerDir: filepath.Join(volumemanager.StateDir(rootDir), "bindings"),
		NodeName:  set.NodeName,
	}
	err := binder.BindPods(ctx, pods)
	failed, ok := errors.AsType[*persistentvolume.PodsError](err)
	if !ok {
		return nil, err
	}
	unbound := make(unboundClaims)
	for _, claim := range failed.Unbound {
		if shownBound(ctx, set, claim.Claim) {
			return nil, claim
		}
		unbound[claim.Claim] = claim
	}
	return unbound, nil
}

// shownBound reports whether a node would mount the claim, because the
// manifests say that it is bound.
func shownBound(ctx context.Context, set *manifest.Set, name types.NamespacedName) bool {
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, set, volume.NewObjectRef("PersistentVolumeClaim", name.Namespace, name.Name))
	if err != nil {
		return false
	}
	pv, err := objects.Get[*v1.PersistentVolume](ctx, set, volume.NewObjectRef("PersistentVolume", "", claim.Spec.VolumeName))
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
