package persistentvolume_test

import (
	"testing"
	"testing/synctest"

	"github.com/podvol/podvol/util/testenv/pvbuild"
)

// A default class that comes after a claim leaves it the volume that it names,
// and a free one without class, as in Kubernetes.
func TestDefaultClassThatComesLaterTakesNoVolumeAway(t *testing.T) {
	t.Run("named", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.start()
			w.create(pvbuild.NewClaim("data", "1Gi", pvbuild.Naming("pv")))
			w.settle()
			w.create(storageClass("std", isDefault))
			w.settle()
			w.create(pvbuild.NewPV("pv", "1Gi"))
			w.settle()
			w.wantBound("data", "pv")
			if class := w.claim("data").Spec.StorageClassName; class != nil {
				t.Errorf("it was given the class %q", *class)
			}
		})
	})
	t.Run("free", func(t *testing.T) { // all of them come while the controller is away
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, pvbuild.NewClaim("data", "1Gi"), storageClass("std", isDefault), pvbuild.NewPV("pv", "1Gi"), pvbuild.NewPV("classy", "1Gi", pvbuild.Class("std")))
			w.start()
			w.settle()
			w.wantBound("data", "pv")
			w.create(pvbuild.NewClaim("more", "1Gi"))
			w.settle()
			w.wantBound("more", "classy")
			if class := w.claim("more").Spec.StorageClassName; class == nil || *class != "std" {
				t.Errorf("its class is %v", class)
			}
		})
	})
}
