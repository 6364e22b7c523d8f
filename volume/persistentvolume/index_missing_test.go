package persistentvolume_test

import (
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

func missingDisk(pv *v1.PersistentVolume) {
	pv.Annotations = map[string]string{claimbinding.LocalVolumeMissing: "2026-11-21T17:00:00Z: disk uuid:1 is not at /mnt/disks/a"}
}

// A disk that is not there is no volume for a claim that could have any, and
// stays that of one for which it was chosen.
func TestAVolumeWhoseDiskIsMissingIsForNobodyElse(t *testing.T) {
	x := index.New(pvbuild.NewPV("a", "1Gi", missingDisk), pvbuild.NewPV("b", "5Gi"))
	if pv, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("c", "1Gi")}); pvbuild.VolumeName(pv) != "b" {
		t.Errorf("%s, %v", pvbuild.VolumeName(pv), err)
	}
	named := pvbuild.NewClaim("named", "1Gi")
	named.Spec.VolumeName = "a"
	if pv, err := x.Match(index.Wanted{Claim: named}); pvbuild.VolumeName(pv) != "a" {
		t.Errorf("%s, %v", pvbuild.VolumeName(pv), err)
	}
	x.Put(pvbuild.NewPV("a", "1Gi", missingDisk, pvbuild.ForClaim("meant", "")))
	if pv, err := x.Match(index.Wanted{Claim: pvbuild.NewClaim("meant", "1Gi")}); pvbuild.VolumeName(pv) != "a" {
		t.Errorf("%s, %v", pvbuild.VolumeName(pv), err)
	}
}

func TestAClaimGetsADiskOnceItIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewClaim("data", "1Gi"), pvbuild.NewPV("a", "1Gi", missingDisk))
		w.start()
		w.settle()
		err := w.controller.Explain(types.NamespacedName{Namespace: "ops", Name: "data"})
		if err == nil || !strings.Contains(err.Error(), "not available (a: its disk is missing since 2026-11-21T17:00:00Z: disk uuid:1 is not at /mnt/disks/a)") {
			t.Errorf("err = %v", err)
		}
		w.change("a", func(pv *v1.PersistentVolume) { delete(pv.Annotations, claimbinding.LocalVolumeMissing) })
		w.settle()
		w.wantBound("data", "a")
	})
}
