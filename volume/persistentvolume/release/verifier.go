// Package release asks the last question before data goes: [Verifier] makes sure that a
// released volume is the one that was asked about, that its claim has left it, and that
// no pod, claim or other volume uses its data ([InUseError], [NotReleasedError]).
package release

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
)

// Verifier is the [volume.ReleaseVerifier] over stored objects. It reads all pods, claims
// and PersistentVolumes after it was asked, once for all callers that wait meanwhile. They
// must be complete: it cannot protect an object that the store does not have. If Objects
// answer from a cache ([objects.Cached]), the API itself is asked. It changes nothing, and
// is safe for concurrent use once its fields are set.
//
// The plugins know which volumes share data ([volumesource.SharesData]): not volumes of two
// plugins, as an export and a hostPath on its server, nor two names of one server.
type Verifier struct {
	Objects objects.Reader
	// Plugins are the node's or controller's; they may be initialised later than the
	// host that has this role.
	Plugins *volume.VolumePluginMgr
	// OtherUses, optional, returns uses that no object tells of, such as mounts for
	// a pod that is deleted already. It is asked after the Objects, since a use may
	// go from them while it lasts, and before the PersistentVolume is read for the
	// last time. An error counts as a use. Nil: there are none.
	OtherUses func(context.Context, *v1.PersistentVolume) ([]Use, error)

	reads sharedReads
}

var (
	_ volume.ReleaseVerifier = (*Verifier)(nil)
	_ volume.UnusedVerifier  = (*Verifier)(nil)
)

// NotReleasedError says that a PersistentVolume is not one whose data may be
// destroyed.
type NotReleasedError struct {
	Volume string
	// Reason says why.
	Reason string
}

func (e *NotReleasedError) Error() string {
	return fmt.Sprintf("the data of PersistentVolume %q must be kept: %s", e.Volume, e.Reason)
}

// VerifyReleased implements [volume.ReleaseVerifier]. The reclaim policy must
// be Recycle or Delete, and stored as the argument says. The error is a
// *[NotReleasedError], an *[InUseError], or a failed look-up. All are marked
// with [volume.NothingDone].
func (r *Verifier) VerifyReleased(ctx context.Context, pv *v1.PersistentVolume) error {
	if pv == nil {
		return volume.Invalid("volume", "only a PersistentVolume can be released")
	}
	if err := r.verify(ctx, pv); err != nil {
		return volume.NothingDone(err)
	}
	return nil
}

// VerifyUnused implements [volume.UnusedVerifier]. The error is an *[InUseError], or a failed
// look-up. Both are marked with [volume.NothingDone].
func (r *Verifier) VerifyUnused(ctx context.Context, pv *v1.PersistentVolume) error {
	f, err := r.newFinder(ctx, pv)
	if err == nil {
		var found []*user
		found, err = f.sharers()
		f.addAll(found)
	}
	switch {
	case err != nil:
		return volume.NothingDone(cannotTell(pv, err))
	case len(f.uses) > 0:
		return volume.NothingDone(&InUseError{Volume: pv.Name, Uses: f.uses})
	}
	return nil
}

func (r *Verifier) verify(ctx context.Context, given *v1.PersistentVolume) error {
	pv, err := r.readReleased(ctx, given)
	if err != nil {
		return err
	}
	for _, find := range []func(context.Context, *v1.PersistentVolume) ([]Use, error){r.findUses, r.OtherUses} {
		if find == nil {
			continue
		}
		switch uses, err := find(ctx, pv); {
		case err != nil:
			return cannotTell(pv, err)
		case len(uses) > 0:
			return &InUseError{Volume: pv.Name, Uses: uses}
		}
	}
	_, err = r.readReleased(ctx, given) // it may have been kept since, as by another policy
	return err
}

// readReleased reads the volume from the API, and refuses one that is to be kept.
func (r *Verifier) readReleased(ctx context.Context, given *v1.PersistentVolume) (*v1.PersistentVolume, error) {
	pv, err := objects.Get[*v1.PersistentVolume](ctx, objects.Live(r.Objects), volume.NewObjectRef(pvapi.KindVolume, "", given.Name))
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return nil, &NotReleasedError{Volume: given.Name, Reason: "no PersistentVolume of this name is stored"}
	case err != nil:
		return nil, cannotTell(given, err)
	}
	if reason := r.stillKept(pv, given); reason != "" {
		return nil, &NotReleasedError{Volume: given.Name, Reason: reason}
	}
	return pv, nil
}

// isTranslation reports whether the volume to reclaim is a driver's, made of the stored one by
// the plugin that both belong to: the same volume by its name.
func (r *Verifier) isTranslation(stored, given *v1.PersistentVolume) bool {
	if given.Spec.CSI == nil || given.Spec.CSI.Driver != stored.Annotations[pvapi.AnnMigratedTo] {
		return false
	}
	plugin, err := pvapi.PluginOf(r.Plugins, volume.NewSpecFromPersistentVolume(stored, false))
	if err != nil {
		return false
	}
	was, err := plugin.GetVolumeName(volume.NewSpecFromPersistentVolume(stored, false))
	is, other := plugin.GetVolumeName(volume.NewSpecFromPersistentVolume(given, false))
	return err == nil && other == nil && was == is
}

func cannotTell(pv *v1.PersistentVolume, err error) error {
	return fmt.Errorf("cannot check whether PersistentVolume %q is in use; treating it as used: %w", pv.Name, err)
}

// stillKept says why the stored volume is not one to destroy, or "".
func (r *Verifier) stillKept(stored, given *v1.PersistentVolume) string {
	ref, policy := stored.Spec.ClaimRef, stored.Spec.PersistentVolumeReclaimPolicy
	switch {
	case given.UID == "" || stored.UID != given.UID:
		return fmt.Sprintf("it has the UID %q and the one to reclaim %q: it was deleted and made again", stored.UID, given.UID)
	case !reflect.DeepEqual(stored.Spec.PersistentVolumeSource, given.Spec.PersistentVolumeSource) && !r.isTranslation(stored, given):
		return "its source has changed"
	case stored.Status.Phase != v1.VolumeReleased && stored.Status.Phase != v1.VolumeFailed: // to reclaim it, once
		return fmt.Sprintf("its phase is %q, not %q", stored.Status.Phase, v1.VolumeReleased)
	case policy != v1.PersistentVolumeReclaimRecycle && policy != v1.PersistentVolumeReclaimDelete:
		return fmt.Sprintf("its reclaim policy is %q", policy)
	case policy != given.Spec.PersistentVolumeReclaimPolicy:
		return fmt.Sprintf("its reclaim policy changed from %q to %q", given.Spec.PersistentVolumeReclaimPolicy, policy)
	case ref == nil || ref.UID == "":
		return "no claim that has left it is recorded in its claimRef"
	case given.Spec.ClaimRef == nil || given.Spec.ClaimRef.UID != ref.UID:
		return fmt.Sprintf("its claimRef has changed: the claim's UID is now %q", ref.UID)
	case pvapi.AwaitsClaim(stored):
		return fmt.Sprintf("its claim \"%s/%s\" (UID %s) was never seen in this cluster; the data may still belong to it", ref.Namespace, ref.Name, ref.UID)
	case stored.DeletionTimestamp != nil && policy == v1.PersistentVolumeReclaimRecycle:
		return "it is being deleted"
	}
	return ""
}
