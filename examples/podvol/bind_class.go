package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// noProvisioner is the provisioner of classes whose volumes people make.
const noProvisioner = "kubernetes.io/no-provisioner"

// unprovisionedError says of an unbound claim that a cluster would make a volume
// for it.
type unprovisionedError struct {
	unbound            *persistentvolume.UnboundError
	class, provisioner string
}

func (e *unprovisionedError) Error() string {
	return fmt.Sprintf("%v; what makes the volumes of storage class %q in a cluster, %s, does not run here: write the PersistentVolume, with storageClassName: %s",
		e.unbound, e.class, e.provisioner, e.class)
}

func (e *unprovisionedError) Unwrap() error { return e.unbound }

// withClass adds to the reason why a claim is not bound that its class has a
// provisioner, if it has.
func withClass(ctx context.Context, store *objects.Store, unbound *persistentvolume.UnboundError) error {
	if unbound.Volume != "" || !errors.Is(unbound, volume.ErrClaimUnbound) {
		return unbound
	}
	name, err := classOf(ctx, store, unbound)
	if err != nil {
		return unbound
	}
	class, err := objects.Get[*storagev1.StorageClass](ctx, store, volume.NewObjectRef("StorageClass", "", name))
	if err != nil || class.Provisioner == noProvisioner {
		return unbound
	}
	return &unprovisionedError{unbound, name, class.Provisioner}
}

// classOf returns the storage class of a claim.
func classOf(ctx context.Context, store *objects.Store, unbound *persistentvolume.UnboundError) (string, error) {
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, store, volume.NewObjectRef("PersistentVolumeClaim", unbound.Claim.Namespace, unbound.Claim.Name))
	if err != nil {
		return "", err
	}
	if claim.Spec.StorageClassName != nil {
		return cmp.Or(claim.Annotations[v1.BetaStorageClassAnnotation], *claim.Spec.StorageClassName), nil
	}
	classes, err := objects.List[*storagev1.StorageClass](ctx, store, "StorageClass", "")
	return cmp.Or(claim.Annotations[v1.BetaStorageClassAnnotation], persistentvolume.DefaultClass(classes)), err
}
