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
	unbound, refused, err := bindPods(ctx, rootDir, set.NodeName, set.Store, pods)
	if err != nil {
		return nil, err
	}
	for _, claim := range refused {
		return nil, claim
	}
	return unbound, nil
}

// bindPods is bindClaims for those who go on with the other pods: refused are
// the claims whose pods must not be mounted, since a node would believe the
// manifests.
func bindPods(ctx context.Context, rootDir, nodeName string, store *objects.Store, pods []*v1.Pod) (unbound, refused unboundClaims, err error) {
	binder := &persistentvolume.Binder{
		Objects:   store,
		LedgerDir: filepath.Join(volumemanager.StateDir(rootDir), "bindings"),
		NodeName:  nodeName,
	}
	err = binder.BindPods(ctx, pods)
	failed, ok := errors.AsType[*persistentvolume.PodsError](err)
	if !ok {
		return nil, nil, err
	}
	unbound, refused = make(unboundClaims), make(unboundClaims)
	for _, claim := range failed.Unbound {
		if shownBound(ctx, store, claim.Claim) {
			refused[claim.Claim] = claim
		} else {
			unbound[claim.Claim] = withClass(ctx, store, claim)
		}
	}
	return unbound, refused, nil
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
