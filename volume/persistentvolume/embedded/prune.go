package embedded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
)

// Declared is all that manifests declare, as a [manifest.Set] has it.
type Declared struct {
	Objects []metav1.Object
	// StatefulSets are the declared ones, even without pods: whether a claim that
	// came with one goes with it depends on that ([manifest.Retention]).
	StatefulSets []types.NamespacedName
	// NothingIsMeant says that it is no mistake if there are no Objects: the caller
	// has seen the last of them go. See [ErrNothingDeclared].
	NothingIsMeant bool
	// Gone, if not nil, are those that were seen to be declared and to go: of
	// claims and volumes, no others are deleted ([Cluster.Undeclared]).
	Gone map[volume.ObjectRef]bool
}

// pruning is one look for objects that are declared no more.
type pruning struct {
	cluster *Cluster
	// kept are the objects that stay; sets the StatefulSets that are declared.
	kept map[volume.ObjectRef]bool
	sets []types.NamespacedName
}

func (c *Cluster) newPruning(declared Declared) *pruning {
	p := &pruning{cluster: c, kept: make(map[volume.ObjectRef]bool, len(declared.Objects)), sets: declared.StatefulSets}
	for _, object := range declared.Objects {
		p.kept[refOf(object)] = true
	}
	return p
}

// Undeclared returns the claims and volumes that [Cluster.Prune] would delete if
// all that is not declared were gone, in order.
func (c *Cluster) Undeclared(ctx context.Context, declared Declared) ([]volume.ObjectRef, error) {
	return c.newPruning(declared).undeclared(ctx)
}

// nothingDeclared names the claims and volumes that would be deleted, in order, since
// nothing at all was declared.
func nothingDeclared(kept []volume.ObjectRef) error {
	const named = 3
	names := make([]string, 0, named+1)
	for i, ref := range kept {
		if i == named {
			names = append(names, fmt.Sprintf("%d more", len(kept)-named))
			break
		}
		names = append(names, ref.String())
	}
	return &volume.Failure{
		Cause: ErrNothingDeclared,
		What:  "no manifest declares anything, so nothing is deleted: " + strings.Join(names, ", "),
		Next:  "delete them by name if they are not wanted",
	}
}

// Prune deletes objects that were applied earlier and are declared no more. It must be
// called only once all manifests are known: all others are taken to be not wanted.
//
//   - A claim is deleted when no pod uses it any more; its volume's reclaim policy decides
//     on its data. A StatefulSet's claim stays unless the set's
//     persistentVolumeClaimRetentionPolicy says otherwise.
//   - A volume is deleted only while it is no claim's. One that has held data for a claim
//     stays, Released, until it is deleted by name, so that no other claim sees that data
//     if its manifest comes back.
//   - Objects that were not applied, or by another [Config.Manager], are left alone: claims
//     of ephemeral volumes, volumes that were made or discovered. So are pods, which their
//     runner deletes when they have ended ([Cluster.PodGone]).
//   - If nothing at all is declared, no claim or volume is deleted, and the error matches
//     [ErrNothingDeclared], unless [Declared.NothingIsMeant].
//   - Else the error joins one *[ObjectError] for each that could not be deleted.
func (c *Cluster) Prune(ctx context.Context, declared Declared) error {
	unlock, err := c.applying.Lock(ctx, struct{}{})
	if err != nil {
		return err
	}
	defer unlock()
	p := c.newPruning(declared)
	unsure := len(declared.Objects) == 0 && !declared.NothingIsMeant
	if unsure || declared.Gone != nil {
		undeclared, err := p.undeclared(ctx)
		switch {
		case err != nil:
			return err
		case unsure && len(undeclared) > 0:
			return nothingDeclared(undeclared)
		}
		for _, ref := range undeclared {
			p.kept[ref] = !declared.Gone[ref]
		}
	}
	return errors.Join(p.claims(ctx), p.volumes(ctx), p.others(ctx))
}

// undeclared returns the claims and volumes that are to be deleted, in order.
func (p *pruning) undeclared(ctx context.Context) (refs []volume.ObjectRef, err error) {
	claims, err := objects.List[*v1.PersistentVolumeClaim](ctx, p.cluster.objects, kindClaim, metav1.NamespaceAll)
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		if p.takesClaim(claim) {
			refs = append(refs, refOf(claim))
		}
	}
	volumes, err := objects.List[*v1.PersistentVolume](ctx, p.cluster.objects, kindVolume, metav1.NamespaceAll)
	if err != nil {
		return nil, err
	}
	for _, pv := range volumes {
		if p.takesVolume(pv) {
			refs = append(refs, refOf(pv))
		}
	}
	slices.SortStableFunc(refs, func(a, b volume.ObjectRef) int { return cmp.Compare(a.String(), b.String()) })
	return refs, nil
}

func (p *pruning) claims(ctx context.Context) error {
	claims, err := objects.List[*v1.PersistentVolumeClaim](ctx, p.cluster.objects, kindClaim, metav1.NamespaceAll)
	errs := []error{err}
	for _, claim := range claims {
		errs = append(errs, p.delete(ctx, claim, func(now metav1.Object) bool {
			return p.takesClaim(now.(*v1.PersistentVolumeClaim))
		}))
	}
	return errors.Join(errs...)
}

func (p *pruning) takesClaim(claim *v1.PersistentVolumeClaim) bool {
	r, ofSet := manifest.RetentionOf(claim)
	return p.takes(claim) && (!ofSet || !r.Keeps(slices.Contains(p.sets, r.StatefulSet)))
}

func (p *pruning) volumes(ctx context.Context) error {
	volumes, err := objects.List[*v1.PersistentVolume](ctx, p.cluster.objects, kindVolume, metav1.NamespaceAll)
	errs := []error{err}
	for _, pv := range volumes {
		errs = append(errs, p.delete(ctx, pv, func(now metav1.Object) bool { return p.takesVolume(now.(*v1.PersistentVolume)) }))
	}
	return errors.Join(errs...)
}

func (p *pruning) takesVolume(pv *v1.PersistentVolume) bool {
	return p.takes(pv) && (pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "")
}

// takes reports whether an object was applied, by this manager, and is
// declared no more.
func (p *pruning) takes(object metav1.Object) bool {
	return object.GetAnnotations()[appliedBy] == p.cluster.manager && object.GetDeletionTimestamp() == nil && !p.kept[refOf(object)]
}

// delete deletes an object if it may go, in the version of which that is said.
func (p *pruning) delete(ctx context.Context, object metav1.Object, mayGo func(metav1.Object) bool) error {
	ref := refOf(object)
	err := retry.Do(ctx, objects.ErrConflict, func() error {
		if !mayGo(object) {
			return nil
		}
		if _, err := p.cluster.allMounted(ctx); err != nil {
			return fmt.Errorf("cannot check whether it is in use; treating it as used: %w", err)
		}
		err := p.cluster.objects.Delete(ctx, ref, objects.Preconditions{UID: object.GetUID(), ResourceVersion: object.GetResourceVersion()})
		if !errors.Is(err, objects.ErrConflict) {
			return err
		}
		changed, getErr := p.cluster.objects.Get(ctx, ref)
		if getErr != nil {
			return getErr
		}
		object = changed
		return err
	})
	if err == nil || errors.Is(err, volume.ErrNotFound) {
		return nil
	}
	return &ObjectError{ref, err}
}

func (p *pruning) others(ctx context.Context) error {
	var errs []error
	for _, ref := range p.unwanted() {
		var err error
		if ref == p.cluster.nodeRef() {
			_, err = p.cluster.applyPlain(ctx, ref, p.cluster.defaultNode())
		} else if err = p.cluster.objects.Delete(ctx, ref, objects.Preconditions{}); errors.Is(err, volume.ErrNotFound) {
			err = nil
		}
		if err != nil {
			errs = append(errs, &ObjectError{ref, err})
		}
	}
	return errors.Join(errs...)
}

// unwanted returns the objects in memory that are declared no more, and forgets
// them and objects to be made anew.
func (p *pruning) unwanted() (refs []volume.ObjectRef) {
	p.cluster.mu.Lock()
	defer p.cluster.mu.Unlock()
	for ref := range p.cluster.later {
		if !p.kept[ref] {
			delete(p.cluster.later, ref)
		}
	}
	for ref := range p.cluster.plain {
		if !p.kept[ref] {
			delete(p.cluster.plain, ref)
			refs = append(refs, ref)
		}
	}
	return refs
}
