package main

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/standalone"
)

// lostVolume says of a claim that was bound to a volume of which there is no record
// what that means for its data, or "".
func (s stored) lostVolume(claim *v1.PersistentVolumeClaim) string {
	if claim == nil || claim.Annotations["pv.kubernetes.io/bind-completed"] == "" || s.volume(claim.Spec.VolumeName) != nil {
		return ""
	}
	return fmt.Sprintf("the record of its volume %q is lost: where its data lies is not known here, and nothing of it is deleted; "+
		"if podvol made it, a mark in the directory .podvol of its share or base names the claim", claim.Spec.VolumeName)
}

// checkStored tells of lost and damaged records of claims and volumes, of volumes that have
// lost their claims, and of claims that have lost their volumes. What seems lost is
// looked at twice: a command that runs may have deleted both in between.
func checkStored(rootDir string) error {
	first := readStored(rootDir)
	errs := []error{standalone.CheckClaims(rootDir), persisted.Check(standalone.ClaimsDir(rootDir))}
	var again *stored
	for _, claim := range first.claims {
		if first.lostVolume(claim) == "" {
			continue
		}
		if again == nil {
			second := readStored(rootDir)
			again = &second
		}
		if text := again.lostVolume(again.claim(nameOfClaim(claim))); text != "" {
			errs = append(errs, fmt.Errorf("PersistentVolumeClaim %s: %s", nameOfClaim(claim), text))
		}
	}
	return errors.Join(errs...)
}
