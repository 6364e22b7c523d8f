package persistentvolume_test

import (
	"testing"
	"testing/synctest"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// The API may refuse the PersistentVolume of storage that is there, as an
// admission webhook does: that the write has left nothing says nothing of that.
func TestStorageWhoseVolumeIsRefusedIsNotForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made)).withStorage()
		w.start()
		accept := w.client.Inject(fault.Fault[objectstest.Call]{Err: volume.Invalid("metadata.labels", "must name an owner"),
			Match: func(c objectstest.Call) bool { return c.Verb == "create" && c.Ref.Kind == "PersistentVolume" }})
		w.create(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
		w.settle()
		if !isProvisioning(w.claim("data")) {
			t.Error("it is not known any more that storage was made")
		}
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		accept()
		w.settle()
		w.wantGone("PersistentVolumeClaim", "ops", "data")
		if got := w.stored(); len(got) != 0 {
			t.Errorf("storage is left: %q", got)
		}
	})
}
