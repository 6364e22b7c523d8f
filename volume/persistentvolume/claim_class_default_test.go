package persistentvolume_test

import (
	"testing"
	"testing/synctest"
)

// A default class that comes after a claim leaves it the volume that it names,
// and a free one without class, as in Kubernetes.
func TestDefaultClassThatComesLaterTakesNoVolumeAway(t *testing.T) {
	t.Run("named", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			w.start()
			w.create(newClaim("data", "1Gi", naming("pv")))
			w.settle()
			w.create(storageClass("std", isDefault))
			w.settle()
			w.create(newPV("pv", "1Gi"))
			w.settle()
			w.wantBound("data", "pv")
			if class := w.claim("data").Spec.StorageClassName; class != nil {
				t.Errorf("it was given the class %q", *class)
			}
		})
	})
	t.Run("free", func(t *testing.T) { // all of them come while the controller is away
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, newClaim("data", "1Gi"), storageClass("std", isDefault), newPV("pv", "1Gi"), newPV("classy", "1Gi", class("std")))
			w.start()
			w.settle()
			w.wantBound("data", "pv")
			w.create(newClaim("more", "1Gi"))
			w.settle()
			w.wantBound("more", "classy")
			if class := w.claim("more").Spec.StorageClassName; class == nil || *class != "std" {
				t.Errorf("its class is %v", class)
			}
		})
	})
}
