package persistentvolume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/durable"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// restore puts into the store what is recorded, and drops the records of what
// is gone for good. It may be repeated.
func (r *RecordedObjects) restore(ctx context.Context) error {
	claims, volumes, err := r.load()
	if err != nil {
		return err
	}
	for _, pv := range volumes {
		if err := r.restoreVolume(ctx, pv); err != nil {
			return fmt.Errorf("restore PersistentVolume %q: %w", pv.Name, err)
		}
	}
	for _, claim := range claims {
		if err := r.restoreClaim(ctx, claim); err != nil {
			return fmt.Errorf("restore PersistentVolumeClaim %q: %w", nameOf(claim), err)
		}
	}
	return nil
}

// restoreVolume gives a declared volume its claim back, and makes one again that
// was made for a claim. What is declared no more keeps its record: should it be
// declared again, its data is still that claim's.
func (r *RecordedObjects) restoreVolume(ctx context.Context, pv *v1.PersistentVolume) error {
	declared, err := objects.Get[*v1.PersistentVolume](ctx, r.Live(), volumeRef(pv.Name))
	switch {
	case errors.Is(err, volume.ErrNotFound) && isGone(pv):
		return durable.Remove(r.path(volumeRef(pv.Name)))
	case errors.Is(err, volume.ErrNotFound) && pv.Annotations[annProvisionedBy] == "":
		return nil
	case errors.Is(err, volume.ErrNotFound):
		if declared, err = update(ctx, r.Objects.Create, unversioned(pv)); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	next := declared.DeepCopy()
	next.Spec.ClaimRef = pv.Spec.ClaimRef
	next.Annotations = merged(next.Annotations, pv.Annotations)
	next.Finalizers = union(next.Finalizers, pv.Finalizers)
	if declared, err = update(ctx, r.Objects.Update, next); err != nil {
		return err
	}
	next = declared.DeepCopy()
	next.Status = pv.Status
	if _, err = update(ctx, r.Objects.UpdateStatus, next); err != nil {
		return err
	}
	if pv.DeletionTimestamp != nil && pv.Annotations[annProvisionedBy] != "" {
		return r.Objects.Delete(ctx, volumeRef(pv.Name), objects.Preconditions{})
	}
	return nil
}

// restoreClaim gives a declared claim its volume back. One that is declared no
// more was deleted while nobody looked; it has to come back only to say what was
// being made for it.
func (r *RecordedObjects) restoreClaim(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	ref := claimRef(nameOf(claim))
	declared, err := objects.Get[*v1.PersistentVolumeClaim](ctx, r.Live(), ref)
	switch {
	case errors.Is(err, volume.ErrNotFound) && isProvisioning(claim):
		if _, err := update(ctx, r.Objects.Create, unversionedClaim(claim)); err != nil {
			return err
		}
		return r.Objects.Delete(ctx, ref, objects.Preconditions{})
	case errors.Is(err, volume.ErrNotFound):
		return durable.Remove(r.path(ref))
	case err != nil:
		return err
	case declared.UID != claim.UID:
		return r.replaced(claim, declared)
	}
	next := declared.DeepCopy()
	next.Spec.VolumeName = claim.Spec.VolumeName
	next.Annotations = merged(next.Annotations, claim.Annotations)
	next.Finalizers = union(next.Finalizers, claim.Finalizers)
	if next.Spec.StorageClassName == nil {
		next.Spec.StorageClassName = claim.Spec.StorageClassName
	}
	if declared, err = update(ctx, r.Objects.Update, next); err != nil {
		return err
	}
	next = declared.DeepCopy()
	next.Status = claim.Status
	_, err = update(ctx, r.Objects.UpdateStatus, next)
	return err
}

// replaced is for a claim in whose place is another of its name.
func (r *RecordedObjects) replaced(claim, by *v1.PersistentVolumeClaim) error {
	path := r.path(claimRef(nameOf(claim)))
	if isProvisioning(claim) {
		return fmt.Errorf("storage may have been made for it under the name %q, and another claim of its name has come (UID %s, before %s): "+
			"delete that storage, then remove %s", ProvisionedName(claim), by.UID, claim.UID, path)
	}
	return durable.Remove(path)
}

func unversioned(pv *v1.PersistentVolume) *v1.PersistentVolume {
	pv = pv.DeepCopy()
	pv.ResourceVersion, pv.DeletionTimestamp = "", nil
	return pv
}

func unversionedClaim(claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	claim = claim.DeepCopy()
	claim.ResourceVersion, claim.DeletionTimestamp = "", nil
	return claim
}

// merged returns the declared annotations, with those that controllers have
// written since.
func merged(declared, recorded map[string]string) map[string]string {
	all := maps.Clone(declared)
	for key, value := range recorded {
		if prefix, _, ok := strings.Cut(key, "/"); !ok || !strings.HasSuffix(prefix, "volume.kubernetes.io") && !strings.HasSuffix(prefix, "volume.beta.kubernetes.io") && prefix != "pv.kubernetes.io" {
			continue
		}
		if all == nil {
			all = make(map[string]string)
		}
		all[key] = value
	}
	return all
}

func union(a, b []string) []string {
	all := slices.Clone(a)
	for _, one := range b {
		if !slices.Contains(all, one) {
			all = append(all, one)
		}
	}
	return all
}
