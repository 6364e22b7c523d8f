package persistentvolume_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// The storage of a volume has gone, but the API does not let the volume go, or takes
// each write and loses the answers: it is asked again after pauses, and nothing that
// was taken back is written again in between.
func TestADeletedVolumeThatStaysIsNotWrittenOverAndOver(t *testing.T) {
	isWrite := func(call objectstest.Call) bool { return isWrite(call) && call.Ref.Kind == "PersistentVolume" } // the storage is in the store, too
	isDelete := func(call objectstest.Call) bool { return isWrite(call) && call.Verb == "delete" }
	for name, broken := range map[string]fault.Fault[objectstest.Call]{
		"refused": {Match: isDelete, Err: errors.New("persistentvolumes is forbidden")},
		"lost":    {Match: isWrite, After: true, Err: errLost},
		"neither": {Match: func(call objectstest.Call) bool { return isDelete(call) || isWrite(call) && call.Verb != "update" }, Err: errLost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storageClass("fast", made), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))).withStorage()
				w.start()
				w.settle()
				w.wantBound("data", "pvc-uid-data")
				match, writes := broken.Match, 0
				broken.Match = func(call objectstest.Call) bool {
					if isWrite(call) {
						writes++
					}
					return match(call) && writes < 1000 // so that a loop without pauses ends
				}
				remove := w.client.Inject(broken)
				w.delete("PersistentVolumeClaim", "ops", "data")
				w.settle()
				remove()
				if writes > 60 {
					t.Errorf("%d writes in an hour", writes)
				}
				w.settle()
				w.wantGone("PersistentVolume", "", "pvc-uid-data")
				if left := w.stored(); len(left) > 0 {
					t.Errorf("storage %v exists", left)
				}
			})
		})
	}
}
