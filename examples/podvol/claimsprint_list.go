package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/standalone"
	"github.com/podvol/podvol/volume/volumemanager"
)

// stored is what is recorded below a root directory.
type stored struct {
	claims  []*v1.PersistentVolumeClaim
	volumes []*v1.PersistentVolume
	// reasons say why claims were not bound when somebody looked last.
	reasons map[string]embedded.Reason
	// damaged joins the records that cannot be read.
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
	return stored{claims, volumes, reasons, err}
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
func notFound(kind storedKind, name string) error {
	return fmt.Errorf("%s %q not found", kind.plural, name)
}

// claimUsersBelow finds out which pods have claims mounted on this machine, by
// the node's records and the mount table.
func claimUsersBelow(rootDir string) (claimUsers, error) {
	mounts := table.Kernel()
	rows, err := volumemanager.Inspect(rootDir, mounts)
	if _, fatal := errors.AsType[*volumemanager.RootError](err); fatal {
		return nil, err
	}
	users := make(claimUsers)
	for _, v := range rows { // of what cannot be read, podvol status tells
		if v.Claim.Name != "" && !slices.Contains(users[v.Claim], v.Pod.Name) {
			users[v.Claim] = append(users[v.Claim], v.Pod.Name)
		}
	}
	return users, nil
}
