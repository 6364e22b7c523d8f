package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// UnboundClaim says why a pod has not got a claim.
type UnboundClaim struct {
	Pod    types.NamespacedName
	PodUID types.UID
	Claim  types.NamespacedName
	// Err is a *[persistentvolume.UnboundError] or wraps one, such as an
	// *[UnprovisionedError].
	Err error
}

func (e *UnboundClaim) Error() string { return fmt.Sprintf("pod %q: %v", e.Pod, e.Err) }

// Unwrap returns Err.
func (e *UnboundClaim) Unwrap() error { return e.Err }

// BindError says which claims some pods have not got.
type BindError struct {
	// Unbound has each claim of each of these pods, never none.
	Unbound []*UnboundClaim

	ended error // why the wait was cut off, if it was
}

func (e *BindError) Error() string {
	lines := make([]string, 0, len(e.Unbound)+1)
	for _, unbound := range e.Unbound {
		lines = append(lines, unbound.Error())
	}
	if e.ended != nil {
		lines = append(lines, fmt.Sprintf("not waited for any longer: %v", e.ended))
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the reasons.
func (e *BindError) Unwrap() []error {
	errs := make([]error, 0, len(e.Unbound)+1)
	for _, unbound := range e.Unbound {
		errs = append(errs, unbound)
	}
	if e.ended != nil {
		errs = append(errs, e.ended)
	}
	return errs
}

// otherClaimError says that a claim waits for a pod that another claim keeps from
// being placed.
type otherClaimError struct{ claim types.NamespacedName }

func (e *otherClaimError) Error() string {
	return fmt.Sprintf("%v: it waits for a pod, which waits for PersistentVolumeClaim %q", volume.ErrClaimUnbound, e.claim)
}

func (e *otherClaimError) Unwrap() []error {
	return []error{volume.ErrClaimUnbound, persistentvolume.ErrWaitsForConsumer}
}

// UnprovisionedError says of an unbound claim that its class has volumes made
// in a cluster, by what does not run here.
type UnprovisionedError struct {
	Class, Provisioner string
	// Err is why the claim is unbound.
	Err error
}

func (e *UnprovisionedError) Error() string {
	return fmt.Sprintf("%v; what makes the volumes of storage class %q in a cluster, %s, does not run here: write the PersistentVolume, with storageClassName: %s",
		e.Err, e.Class, e.Provisioner, e.Class)
}

// Unwrap returns Err.
func (e *UnprovisionedError) Unwrap() error { return e.Err }

// noProvisioner is the provisioner of classes whose volumes people make.
const noProvisioner = "kubernetes.io/no-provisioner"

// withClass adds to the reason why a claim is not bound that its class has a
// provisioner that does not run here, if it has.
func (c *Cluster) withClass(ctx context.Context, name types.NamespacedName, why error) error {
	unbound, ok := errors.AsType[*persistentvolume.UnboundError](why)
	if !ok || unbound.Volume != "" || !errors.Is(unbound.Err, volume.ErrClaimUnbound) {
		return why
	}
	class, err := c.classOf(ctx, name)
	if err != nil || class.Provisioner == noProvisioner {
		return why
	}
	if _, err := c.plugins.FindProvisionablePluginByName(class.Provisioner); err == nil {
		return why
	}
	alone := *unbound
	alone.Err = volume.ErrClaimUnbound // that it waits for the provisioner would only mislead
	return &UnprovisionedError{Class: class.Name, Provisioner: class.Provisioner, Err: &alone}
}

// classOf returns the storage class of a claim.
func (c *Cluster) classOf(ctx context.Context, name types.NamespacedName) (*storagev1.StorageClass, error) {
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, c.objects, volume.NewObjectRef(kindClaim, name.Namespace, name.Name))
	if err != nil {
		return nil, err
	}
	class := claim.Annotations[v1.BetaStorageClassAnnotation]
	if named := claim.Spec.StorageClassName; named != nil {
		class = cmp.Or(class, *named)
	}
	return objects.Get[*storagev1.StorageClass](ctx, c.objects, volume.NewObjectRef(kindClass, "", class))
}
