package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/examples/podvol/internal/choice"
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

// checkStored tells of lost and damaged records of claims and volumes, and of records that are
// missing. Missing ones are searched for twice: a command that runs may have deleted
// it in between.
func checkStored(rootDir string) error {
	errs := []error{standalone.CheckClaims(rootDir), persisted.Check(standalone.ClaimsDir(rootDir))}
	missed := missedBelow(rootDir)
	if len(missed) == 0 {
		return errors.Join(errs...)
	}
	still := missedBelow(rootDir)
	for _, text := range missed {
		if slices.Contains(still, text) {
			errs = append(errs, errors.New(text))
		}
	}
	return errors.Join(errs...)
}

// missedBelow says which volumes are not on record that claims are bound to, or that pods
// have mounted for claims.
func missedBelow(rootDir string) (missed []string) {
	rows, _ := volumemanager.Inspect(rootDir, table.Kernel()) // before the records: a volume is deleted after it was unmounted
	s := readStored(rootDir)
	for _, claim := range s.claims {
		if text := s.lostVolume(claim); text != "" {
			missed = append(missed, fmt.Sprintf("PersistentVolumeClaim %s: %s", nameOfClaim(claim), text))
		}
	}
	if !persisted.IsUsed(standalone.ClaimsDir(rootDir)) {
		return missed // the claims are kept elsewhere, as by an API server
	}
	for _, v := range rows {
		if v.Claim.Name != "" && v.PersistentVolume != "" && s.volume(v.PersistentVolume) == nil {
			missed = append(missed, fmt.Sprintf("PersistentVolume %q: its record is lost, while pod %s has it mounted for PersistentVolumeClaim %s: its data is in %s; "+
				"before the pod goes, restore the record from a backup, or declare a PersistentVolume with this source and a claimRef to the claim", v.PersistentVolume, v.Pod, v.Claim, v.Source))
		}
	}
	return missed
}

// stored are the records below a root directory.
type stored struct {
	claims  []*v1.PersistentVolumeClaim
	volumes []*v1.PersistentVolume
	// reasons say why claims were not bound at the last look.
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

// orCommand adds to an error that the first word names nothing which command it may mean.
func orCommand(c *cobra.Command, words []string, err error) error {
	missing, ok := errors.AsType[*kubectlget.NotFoundError](err)
	if !ok || missing.Word != words[0] {
		return err
	}
	if meant := choice.MeantCommand(c, words[0]); meant != "" {
		err = errors.Join(err, fmt.Errorf("%s has no command %q%s", c.CommandPath(), words[0], meant))
	}
	return err
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
