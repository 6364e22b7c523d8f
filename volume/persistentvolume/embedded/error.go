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
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// Causes of a cluster's errors, for [errors.Is].
const (
	// ErrBusy: another process has the claims and volumes of this machine.
	ErrBusy volume.Cause = "another process has the claims and volumes"
	// ErrInUse: pods or commands use a claim or volume that is to go.
	ErrInUse volume.Cause = "it is in use on this machine"
	// ErrRefused: an object must not be deleted, or not be released.
	ErrRefused volume.Cause = "it must not be deleted or released"
	// ErrImmutable: a field was to be changed that stays as it is once a claim has a
	// volume, since the data is where it is. A volume that is to be another claim's
	// matches [claimbinding.ErrElsewhere], too.
	ErrImmutable volume.Cause = "the field cannot be changed"
	// ErrIncomplete is what [Config.Mounted] returns beside its result when more may be
	// mounted than that: claims are used then, and none is deleted.
	ErrIncomplete volume.Cause = "more may be mounted than is known"
	// ErrNothingDeclared: nothing at all was declared, and something would be deleted
	// for that. A directory looks like that whose disk is not mounted, so that nothing
	// was deleted.
	ErrNothingDeclared volume.Cause = "no manifest declares anything"
	// ErrNotProvisionedHere: in a cluster the class of an unbound claim has volumes made,
	// by a provisioner that does not run here.
	ErrNotProvisionedHere volume.Cause = "the provisioner does not run here"
)

// UnboundClaim says why a pod has not got a claim.
type UnboundClaim struct {
	Pod    types.NamespacedName
	PodUID types.UID
	Claim  types.NamespacedName
	// Err is a *[index.UnboundError] or wraps one, as with [ErrNotProvisionedHere].
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
	return fmt.Sprintf("%v: it waits for a pod, which waits for PersistentVolumeClaim %q", claimbinding.ErrUnbound, e.claim)
}

func (e *otherClaimError) Unwrap() []error {
	return []error{claimbinding.ErrUnbound, index.ErrWaitsForConsumer}
}

// WaitsFor implements [claimbinding.Waiting].
func (e *otherClaimError) WaitsFor() string { return claimbinding.ToBeBound(e.claim) }

// noProvisioner is the provisioner of classes whose volumes people make.
const noProvisioner = "kubernetes.io/no-provisioner"

// withClass adds to the reason why a claim is not bound that its class has a
// provisioner that does not run here, if it has. If the class is not there, it adds why no volume
// could be made when an earlier process knew it.
func (c *Cluster) withClass(ctx context.Context, name types.NamespacedName, why error) error {
	unbound, ok := errors.AsType[*index.UnboundError](why)
	if !ok || unbound.Volume != "" || !errors.Is(unbound.Err, claimbinding.ErrUnbound) {
		return why
	}
	class, err := c.classOf(ctx, name)
	if errors.Is(why, persistentvolume.ErrNoClass) && !errors.Is(why, persistentvolume.ErrNotProvisioned) {
		return withFailure(ctx, c, name, unbound)
	}
	if err != nil || class.Provisioner == noProvisioner {
		return why
	}
	if _, err := c.plugins.FindProvisionablePluginByName(class.Provisioner); err == nil {
		return why
	}
	alone := *unbound
	alone.Err = claimbinding.ErrUnbound // that it waits for the provisioner would only mislead
	return &volume.Failure{
		Cause: ErrNotProvisionedHere, Subject: class.Name, Err: &alone,
		What: fmt.Sprintf("%v; the provisioner of storage class %q, %s, does not run here", &alone, class.Name, class.Provisioner),
		Next: "write the PersistentVolume, with storageClassName: " + class.Name,
	}
}

// withFailure adds to the reason why a claim is not bound why its volume could not be made, as an
// earlier process has found.
func withFailure(ctx context.Context, c *Cluster, name types.NamespacedName, why *index.UnboundError) error {
	before := c.reasons.before[name.String()]
	claim, err := objects.Get[*v1.PersistentVolumeClaim](ctx, c.objects, pvapi.ClaimRef(name))
	if err != nil || before.Failed == "" || before.UID != claim.UID {
		return why
	}
	both := *why
	both.Err = fmt.Errorf("%w; before that: %s", why.Err, before.Failed)
	return &both
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
