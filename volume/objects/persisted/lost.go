package persisted

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/seal"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// deletedClaim takes the place of a deleted claim in its file, as long as the volume's
// record says that it is bound to the claim: with no file the claim would seem lost.
type deletedClaim struct {
	types.NamespacedName
	UID types.UID `json:"uid"`
}

// graves are the files of deleted claims, and the volumes that have lost theirs.
type graves struct {
	deleted map[types.NamespacedName]types.UID
	lost    map[types.NamespacedName]string // the volume's name
}

// findLost marks the volumes whose claims have no record, though they were not
// deleted. Remains of deleted claims are removed once their volumes know.
func (r *Store) findLost(claims []*v1.PersistentVolumeClaim, volumes []*v1.PersistentVolume, deleted map[types.NamespacedName]types.UID) {
	r.graves = graves{deleted: deleted, lost: make(map[types.NamespacedName]string)}
	recorded := recordedClaims(claims)
	needed := make(map[types.NamespacedName]bool)
	for _, pv := range volumes {
		name, ok := pvapi.ClaimRefOf(pv)
		if !ok || recorded[name] {
			continue
		}
		if losesClaim(pv) {
			if deleted[name] == pv.Spec.ClaimRef.UID {
				needed[name] = true
				continue
			}
			metav1.SetMetaDataAnnotation(&pv.ObjectMeta, pvapi.AwaitsClaimAnnotation, string(pv.Spec.ClaimRef.UID))
			metav1.SetMetaDataAnnotation(&pv.ObjectMeta, pvapi.LostClaimAnnotation, string(pv.Spec.ClaimRef.UID))
		}
		if pvapi.HasLostClaim(pv) {
			r.graves.lost[name] = pv.Name
		}
	}
	for _, name := range slices.Collect(maps.Keys(deleted)) {
		if !needed[name] && r.remove(pvapi.ClaimRef(name)) == nil {
			delete(deleted, name)
		}
	}
}

// bury removes the record of an object. The record of a claim whose volume may
// still say that it is bound stays, and from then on says that the claim was
// deleted.
func (r *Store) bury(ref volume.ObjectRef, stored metav1.Object) error {
	claim, ok := stored.(*v1.PersistentVolumeClaim)
	if !ok || !r.isBoundTo(claim) {
		return r.remove(ref)
	}
	data, err := json.Marshal(record{SchemaVersion: schemaVersion, Deleted: &deletedClaim{NamespacedName: ref.NamespacedName, UID: claim.UID}})
	if err != nil {
		return err
	}
	err = r.spare.spend(func() error {
		return r.disk.WriteFile(filepath.Join(r.dir, recordName(ref)), seal.Add(append(data, '\n')), 0o600)
	})
	if err != nil {
		return fmt.Errorf("record that %s is deleted: %w", ref, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.graves.deleted[ref.NamespacedName] = claim.UID
	return nil
}

// isBoundTo reports whether a volume says, or may, that it is bound to a claim.
func (r *Store) isBoundTo(claim *v1.PersistentVolumeClaim) bool {
	if claim.Spec.VolumeName == "" {
		return false
	}
	pv, err := objects.Get[*v1.PersistentVolume](context.Background(), r.Live(), pvapi.VolumeRef(claim.Spec.VolumeName))
	if err != nil {
		return !errors.Is(err, volume.ErrNotFound)
	}
	return pv.Status.Phase == v1.VolumeBound && pv.Spec.ClaimRef != nil && pv.Spec.ClaimRef.UID == claim.UID
}

// clearGrave removes the file of a deleted claim once its volume is not bound to it
// any more. After a failure it is tried when the records are opened again.
func (r *Store) clearGrave(ctx context.Context, stored, next metav1.Object) {
	pv, ok := stored.(*v1.PersistentVolume)
	if !ok || pv.Spec.ClaimRef == nil {
		return
	}
	if now, ok := next.(*v1.PersistentVolume); ok && now != nil && !pvapi.IsGone(now) && now.Status.Phase == v1.VolumeBound {
		return
	}
	name, _ := pvapi.ClaimRefOf(pv)
	if !r.isGrave(name, pv.Spec.ClaimRef.UID) {
		return
	}
	unlock, err := r.keys.Lock(ctx, pvapi.ClaimRef(name))
	if err != nil {
		return
	}
	defer unlock()
	if r.isGrave(name, pv.Spec.ClaimRef.UID) && r.remove(pvapi.ClaimRef(name)) == nil {
		r.noGrave(name)
	}
}

func (r *Store) isGrave(name types.NamespacedName, uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return uid != "" && r.graves.deleted[name] == uid
}

// noGrave notes that the file of a claim is another's, or gone.
func (r *Store) noGrave(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.graves.deleted, name)
}

// recognise gives a claim without UID the UID of the lost claim of its name, so that
// it gets that claim's volume.
func (r *Store) recognise(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	claim, ok := object.(*v1.PersistentVolumeClaim)
	if !ok || claim.UID != "" {
		return object, nil
	}
	name := pvapi.NameOf(claim)
	r.mu.Lock()
	lost := r.graves.lost[name]
	r.mu.Unlock()
	if lost == "" {
		return object, nil
	}
	pv, err := objects.Get[*v1.PersistentVolume](ctx, r.Live(), pvapi.VolumeRef(lost))
	if ref, ok := refOfLost(pv, err); !ok || ref != name {
		return object, pvapi.IgnoreMissing(err)
	}
	next := claim.DeepCopy()
	next.UID, next.Spec.VolumeName = pv.Spec.ClaimRef.UID, pv.Name // whatever it asks for by now
	return next, nil
}

func refOfLost(pv *v1.PersistentVolume, err error) (types.NamespacedName, bool) {
	if err != nil || !pvapi.HasLostClaim(pv) {
		return types.NamespacedName{}, false
	}
	return pvapi.ClaimRefOf(pv)
}
