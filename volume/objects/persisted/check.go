package persisted

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/internal/pvapi"
)

// LostClaimError says that a volume is bound to a claim that has no record, though
// nothing says that it was deleted. A claim of that name gets the volume again.
type LostClaimError struct {
	Claim  types.NamespacedName
	Volume string
	// Path is where the claim's record should be.
	Path string
}

func (e *LostClaimError) Error() string {
	return fmt.Sprintf("PersistentVolumeClaim %s: its record %s is lost, while PersistentVolume %q is bound to it, whose data is kept: "+
		"declare the claim again, and it gets the volume again; if the data is not needed, delete that volume", e.Claim, e.Path, e.Volume)
}

// Check returns the faults of the claims and volumes that are recorded in a
// directory: the error joins a *[DamagedError] or a *[LostClaimError] for each,
// and a fault of the file of versions. It takes no lock and changes nothing.
func Check(dir string) error {
	_, epochErr := readEpoch(filepath.Join(dir, epochFile))
	lost, err := lostClaims(dir)
	errs := []error{epochErr, err}
	if len(lost) == 0 {
		return errors.Join(errs...)
	}
	// A claim may have been made and bound while the first look was going on.
	again, _ := lostClaims(dir)
	for _, pv := range slices.Sorted(maps.Keys(again)) {
		if claim := again[pv]; lost[pv] == claim {
			errs = append(errs, &LostClaimError{Claim: claim.NamespacedName, Volume: pv, Path: filepath.Join(dir, recordName(pvapi.ClaimRef(claim.NamespacedName)))})
		}
	}
	return errors.Join(errs...)
}

// lostClaim is a claim, and not a later one of its name.
type lostClaim struct {
	types.NamespacedName
	UID types.UID
}

// lostClaims returns the claims that have no record, by the volumes that are theirs.
func lostClaims(dir string) (map[string]lostClaim, error) {
	claims, volumes, deleted, err := readRecords(dir)
	recorded := recordedClaims(claims)
	lost := make(map[string]lostClaim)
	for _, pv := range volumes {
		name, ok := pvapi.ClaimRefOf(pv)
		if ok && !recorded[name] && (pvapi.HasLostClaim(pv) || losesClaim(pv) && deleted[name] != pv.Spec.ClaimRef.UID) {
			lost[pv.Name] = lostClaim{NamespacedName: name, UID: pv.Spec.ClaimRef.UID}
		}
	}
	for _, damaged := range damagedRecords(err) { // which may be the claim's, and is told of
		for pv, claim := range lost {
			if filepath.Base(damaged.Path) == recordName(pvapi.ClaimRef(claim.NamespacedName)) {
				delete(lost, pv)
			}
		}
	}
	return lost, err
}

func damagedRecords(err error) (all []*DamagedError) {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return nil
	}
	for _, each := range joined.Unwrap() {
		if damaged, ok := errors.AsType[*DamagedError](each); ok {
			all = append(all, damaged)
		}
	}
	return all
}

func recordedClaims(claims []*v1.PersistentVolumeClaim) map[types.NamespacedName]bool {
	recorded := make(map[types.NamespacedName]bool, len(claims))
	for _, claim := range claims {
		recorded[pvapi.NameOf(claim)] = true
	}
	return recorded
}

// losesClaim reports whether a volume whose claim has no record has lost it, unless
// that was deleted.
func losesClaim(pv *v1.PersistentVolume) bool {
	return pv.Status.Phase == v1.VolumeBound && pv.Spec.ClaimRef.UID != "" && !pvapi.AwaitsClaim(pv)
}

// IsUsed reports whether records were ever kept in a directory: each store writes its
// versions there before its first record. It takes no lock.
func IsUsed(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, epochFile))
	return err == nil
}
