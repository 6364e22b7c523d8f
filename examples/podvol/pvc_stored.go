package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
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

// stored is what is recorded below a root directory.
type stored struct {
	claims  []*v1.PersistentVolumeClaim
	volumes []*v1.PersistentVolume
	// reasons say why claims were not bound when somebody looked last.
	reasons map[string]embedded.Reason
	// damaged joins the records that are lost or cannot be read.
	damaged error
}

// readStored reads the records, in the order of kubectl, without a lock: each
// file is replaced in one step.
func readStored(rootDir string) stored {
	claims, volumes, err := persisted.Read(standalone.ClaimsDir(rootDir))
	slices.SortFunc(claims, func(a, b *v1.PersistentVolumeClaim) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(volumes, func(a, b *v1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	reasons, unreadable := embedded.ReadReasons(standalone.ClaimsDir(rootDir))
	if unreadable != nil {
		reasons = nil // what can be said without is
	}
	return stored{claims, volumes, reasons, errors.Join(standalone.CheckClaims(rootDir), err)}
}

func (s stored) claim(name types.NamespacedName) *v1.PersistentVolumeClaim {
	for _, claim := range s.claims {
		if nameOfClaim(claim) == name {
			return claim
		}
	}
	return nil
}

func (s stored) volume(name string) *v1.PersistentVolume {
	for _, pv := range s.volumes {
		if pv.Name == name {
			return pv
		}
	}
	return nil
}

// notFound says in kubectl's words that there is no object of a name.
func notFound(kind kubectlget.Kind, name string) error {
	return fmt.Errorf("%s %q not found", kind.Plural, name)
}

// claimUsersBelow finds out which pods have claims mounted on this machine, by
// the node's records and the mount table.
func claimUsersBelow(rootDir string) (kubectlget.ClaimUsers, error) {
	mounts := table.Kernel()
	rows, err := volumemanager.Inspect(rootDir, mounts)
	if _, fatal := errors.AsType[*volumemanager.RootError](err); fatal {
		return nil, err
	}
	users := make(kubectlget.ClaimUsers)
	for _, v := range rows { // of what cannot be read, podvol status tells
		if v.Claim.Name != "" && !slices.Contains(users[v.Claim], v.Pod.Name) {
			users[v.Claim] = append(users[v.Claim], v.Pod.Name)
		}
	}
	return users, nil
}
