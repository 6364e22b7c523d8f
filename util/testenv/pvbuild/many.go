package pvbuild

import (
	"fmt"
	"math/rand/v2"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// Numbers of volumes.
const (
	// FewVolumes and ManyVolumes are the sizes that figures compare.
	FewVolumes  = 1000
	ManyVolumes = 100_000
)

// ManyPVs returns volumes as a cluster has them: of a few sizes, classes and
// access modes, a third of them local to one of a hundred nodes.
func ManyPVs(count int) []*v1.PersistentVolume {
	volumes := make([]*v1.PersistentVolume, count)
	for i := range volumes {
		options := []Option{Class([]string{"fast", "slow"}[i%2]), Labelled("disk", []string{"ssd", "hdd", "nvme", "tape"}[i/2%4]), InPhase(v1.VolumeAvailable)}
		if i%3 == 0 {
			options = append(options, OnHost(fmt.Sprintf("node%d", i%100)))
		}
		if i%5 == 0 {
			options = append(options, WithModes(Rwo))
		}
		volumes[i] = NewPV(fmt.Sprintf("pv-%06d", i), fmt.Sprintf("%dGi", 1+i%20), options...)
	}
	rand.Shuffle(count, func(i, j int) { volumes[i], volumes[j] = volumes[j], volumes[i] })
	return volumes
}

// ReleasedPVs returns volumes that would fit, were it not for the claims that
// are gone.
func ReleasedPVs(count int) []*v1.PersistentVolume {
	volumes := ManyPVs(count)
	for i, pv := range volumes {
		pv.Name = fmt.Sprintf("old-%06d", i)
		ForClaim(fmt.Sprintf("old-%d", i), "gone")(pv)
		InPhase(v1.VolumeReleased)(pv)
	}
	return volumes
}

// ManyClaims returns claims for [ManyPVs].
func ManyClaims(count int) []index.Wanted {
	wanted := make([]index.Wanted, count)
	for i := range wanted {
		c := NewClaim(fmt.Sprintf("c-%06d", i), "1Gi", OfClass([]string{"fast", "slow"}[i%2]))
		if i%10 == 0 {
			SelectingPairs(map[string]string{"disk": "ssd"})(c)
		}
		wanted[i] = index.Wanted{Claim: c, NodeName: fmt.Sprintf("node%d", i%100)}
	}
	return wanted
}

// Pool returns volumes that fit the claims of [PoolClaims], each one.
func Pool(count int) []*v1.PersistentVolume {
	volumes := make([]*v1.PersistentVolume, count)
	for i := range volumes {
		volumes[i] = NewPV(fmt.Sprintf("pool-%06d", i), fmt.Sprintf("%dGi", 1+i%20), Class("pool"))
	}
	rand.Shuffle(count, func(i, j int) { volumes[i], volumes[j] = volumes[j], volumes[i] })
	return volumes
}

// PoolClaims returns claims for [Pool].
func PoolClaims(count int) []index.Wanted {
	wanted := make([]index.Wanted, count)
	for i := range wanted {
		wanted[i].Claim = NewClaim(fmt.Sprintf("c-%06d", i), fmt.Sprintf("%dGi", 1+i%20), OfClass("pool"))
	}
	return wanted
}

// Access modes and volume modes, by their short names.
const (
	Rwo, Rwx   = v1.ReadWriteOnce, v1.ReadWriteMany
	Rox, Rwop  = v1.ReadOnlyMany, v1.ReadWriteOncePod
	Block, Dir = v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem
)
