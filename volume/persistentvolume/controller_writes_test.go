package persistentvolume_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// calls names what was called since the last time, in order, and forgets it.
func (w *world) calls() string {
	w.t.Helper()
	var all []string
	for _, call := range w.client.Calls() {
		all = append(all, call.Verb+" "+call.Ref.Name)
	}
	w.client.ResetCalls()
	return strings.Join(all, ", ")
}

func (w *world) wantCalls(want string) {
	w.t.Helper()
	if got := w.calls(); got != want {
		w.t.Errorf("calls: %s\nwant:  %s", got, want)
	}
}

const fourWrites = "update pv, update data, update status pv, update status data"

// A binding takes four writes: two objects, and two statuses, each of which the
// API takes by itself. What protects claim and volume goes with the first two.
func TestABindingTakesFourWrites(t *testing.T) {
	protected := func(pv *v1.PersistentVolume) { pv.Finalizers = []string{"kubernetes.io/pv-protection"} }
	t.Run("both are there at the start", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("data", "1Gi"))
			w.start()
			w.settle()
			w.wantBound("data", "pv")
			w.wantCalls(fourWrites)
			w.stop()
			w.start() // with nothing to do
			w.settle()
			w.wantCalls("")
		})
	})
	t.Run("the claim comes later", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, pvbuild.NewPV("pv", "1Gi", protected, pvbuild.InPhase(v1.VolumeAvailable)))
			w.start()
			w.settle()
			w.wantCalls("")
			w.create(pvbuild.NewClaim("data", "1Gi"))
			w.settle()
			w.wantBound("data", "pv")
			w.wantCalls(fourWrites)
		})
	})
	t.Run("the volume comes later", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, pvbuild.NewClaim("data", "1Gi"))
			w.start()
			w.settle()
			w.wantCalls("update data, update status data") // protected, and Pending
			w.create(pvbuild.NewPV("pv", "1Gi"))
			w.settle()
			w.wantBound("data", "pv")
			w.wantCalls(fourWrites)
		})
	})
	t.Run("the default class is given, too", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, storageClass("fast", isDefault), pvbuild.NewPV("pv", "1Gi", pvbuild.Class("fast")), pvbuild.NewClaim("data", "1Gi"))
			w.start()
			w.settle()
			w.wantBound("data", "pv")
			w.wantCalls("update data, " + fourWrites)
		})
	})
	t.Run("a volume is made", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, storageClass("made", made), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("made"), func(c *v1.PersistentVolumeClaim) { c.Status.Phase = v1.ClaimPending })).withStorage()
			w.start()
			w.settle()
			w.wantBound("data", "pvc-uid-data")
			// The claim says first that something is being made for it, and in between
			// the plugin makes it. The volume is stored with its claimRef.
			reads := func(call string) bool { return strings.HasPrefix(call, "get ") }
			if got := slices.DeleteFunc(strings.Split(w.calls(), ", "), reads); !slices.Equal(got, []string{
				"update data", "create pvc-uid-data", "create pvc-uid-data", "update data", "update status pvc-uid-data", "update status data"}) {
				t.Errorf("calls: %v", got)
			}
		})
	})
}

// A volume that a waiting claim could have, but does not take, is as ready for
// the next as any other.
func TestAVolumeThatNobodyTakesIsAvailable(t *testing.T) {
	for name, prepare := range map[string]func(*world){
		"its claim takes a better one": func(w *world) {
			w.config.Workers = 1
			w.start()
			w.settle()
			release := make(chan struct{})
			w.client.Inject(fault.Fault[objectstest.Call]{Match: func(c objectstest.Call) bool { return c.Ref.Name == "busy" }, Nth: 1, Release: release})
			w.create(pvbuild.NewClaim("busy", "9Gi")) // the only worker
			synctest.Wait()
			w.create(pvbuild.NewPV("pv", "2Gi"))
			synctest.Wait()
			w.create(pvbuild.NewPV("best", "1Gi"))
			synctest.Wait()
			close(release)
			w.settle()
			w.wantBound("data", "best")
		},
		"its claim is deleted meanwhile": func(w *world) {
			w.start()
			w.settle()
			w.client.Inject(fault.Fault[objectstest.Call]{Match: func(c objectstest.Call) bool { return c.Verb == "update" && c.Ref.Name == "pv" }, Nth: 1, Err: errors.New("broken")})
			w.create(pvbuild.NewPV("pv", "2Gi"))
			synctest.Wait()
			w.delete("PersistentVolumeClaim", "ops", "data")
			w.settle()
			w.wantGone("PersistentVolumeClaim", "ops", "data")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, pvbuild.NewClaim("data", "1Gi"))
				prepare(w)
				w.wantPV("pv", v1.VolumeAvailable)
				if f := w.pv("pv").Finalizers; !slices.Equal(f, []string{"kubernetes.io/pv-protection"}) {
					t.Errorf("its finalizers are %v", f)
				}
			})
		})
	}
}

// What an earlier process may have made for a claim is done away with when
// somebody has chosen another volume for the claim meanwhile.
func TestWhatWasMadeGoesForWhatIsChosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("made", made), pvbuild.NewPV("chosen", "1Gi", pvbuild.Class("made"), pvbuild.ForClaim("data", "")),
			pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("made"), func(c *v1.PersistentVolumeClaim) { c.Finalizers = []string{persistentvolume.ProvisioningFinalizer} }),
			&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "pvc-uid-data"}}).withStorage()
		w.start()
		w.settle()
		w.wantBound("data", "chosen")
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		if left := w.stored(); len(left) != 0 || slices.Contains(w.claim("data").Finalizers, persistentvolume.ProvisioningFinalizer) {
			t.Errorf("storage is left: %v; the claim's finalizers are %v", left, w.claim("data").Finalizers)
		}
	})
}
