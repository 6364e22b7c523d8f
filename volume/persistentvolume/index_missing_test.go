package persistentvolume_test

import (
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/persistentvolume"
)

func missingDisk(pv *v1.PersistentVolume) {
	pv.Annotations = map[string]string{volume.LocalVolumeMissing: "2026-11-21T17:00:00Z: disk uuid:1 is not at /mnt/disks/a"}
}

// A disk that is not there is no volume for a claim that could have any, and
// stays that of one for which it was chosen.
func TestAVolumeWhoseDiskIsMissingIsForNobodyElse(t *testing.T) {
	x := persistentvolume.NewIndex(newPV("a", "1Gi", missingDisk), newPV("b", "5Gi"))
	if pv, err := x.Match(persistentvolume.Wanted{Claim: newClaim("c", "1Gi")}); nameOf(pv) != "b" {
		t.Errorf("%s, %v", nameOf(pv), err)
	}
	named := newClaim("named", "1Gi")
	named.Spec.VolumeName = "a"
	if pv, err := x.Match(persistentvolume.Wanted{Claim: named}); nameOf(pv) != "a" {
		t.Errorf("%s, %v", nameOf(pv), err)
	}
	x.Put(newPV("a", "1Gi", missingDisk, forClaim("meant", "")))
	if pv, err := x.Match(persistentvolume.Wanted{Claim: newClaim("meant", "1Gi")}); nameOf(pv) != "a" {
		t.Errorf("%s, %v", nameOf(pv), err)
	}
}

func TestAClaimGetsADiskOnceItIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, newClaim("data", "1Gi"), newPV("a", "1Gi", missingDisk))
		w.start()
		w.settle()
		err := w.controller.Explain(types.NamespacedName{Namespace: "ops", Name: "data"})
		if err == nil || !strings.Contains(err.Error(), "not available (a: its disk is missing since 2026-11-21T17:00:00Z: disk uuid:1 is not at /mnt/disks/a)") {
			t.Errorf("err = %v", err)
		}
		w.change("a", func(pv *v1.PersistentVolume) { delete(pv.Annotations, volume.LocalVolumeMissing) })
		w.settle()
		w.wantBound("data", "a")
	})
}
