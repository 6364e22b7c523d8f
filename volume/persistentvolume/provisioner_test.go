package persistentvolume_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

func TestDynamicProvisioning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		class := storageClass("fast", made, isDefault)
		class.Parameters, class.MountOptions = map[string]string{"size": "large"}, []string{"noatime"}
		w := newWorld(t, class, pvbuild.NewPV("classless", "1Gi"), pvbuild.NewClaim("data", "2Gi")).withStorage()
		w.start()
		w.settle()
		w.wantBound("data", "pvc-uid-data")
		w.events.want(t, "data: Normal ProvisioningSucceeded Successfully provisioned volume pvc-uid-data using example.com/storage")
		pv, c := w.pv("pvc-uid-data"), w.claim("data")
		if pv.Annotations["pv.kubernetes.io/provisioned-by"] != storagePlugin || pv.Annotations["pv.kubernetes.io/bound-by-controller"] != "yes" ||
			pv.Annotations["example.com/parameter"] != "large" {
			t.Errorf("the volume's annotations are %v", pv.Annotations)
		}
		if pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete || pv.Spec.StorageClassName != "fast" || !slices.Equal(pv.Spec.MountOptions, class.MountOptions) ||
			!slices.Contains(pv.Finalizers, "kubernetes.io/pv-controller") {
			t.Errorf("the volume is %+v", pv)
		}
		if c.Annotations["volume.kubernetes.io/storage-provisioner"] != storagePlugin || c.Annotations["volume.beta.kubernetes.io/storage-provisioner"] != storagePlugin ||
			slices.Contains(c.Finalizers, "podvol.io/provisioning") {
			t.Errorf("the claim's annotations are %v, its finalizers %v", c.Annotations, c.Finalizers)
		}

		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		if left := w.stored(); len(left) > 0 {
			t.Errorf("storage is left: %v", left)
		}
	})
}

func TestProvisioningFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := storageClass("bad", made)
		bad.Parameters = map[string]string{"bad": "yes"}
		unknown := storageClass("unknown", func(c *storagev1.StorageClass) { c.Provisioner = "kubernetes.io/nix" })
		external := storageClass("external", func(c *storagev1.StorageClass) { c.Provisioner = "csi.example.com" })
		w := newWorld(t, bad, unknown, external, storageClass("none"),
			pvbuild.NewClaim("a", "1Gi", pvbuild.OfClass("bad")), pvbuild.NewClaim("b", "1Gi", pvbuild.OfClass("unknown")), pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("external")),
			pvbuild.NewClaim("d", "1Gi", pvbuild.OfClass("none")), pvbuild.NewClaim("e", "1Gi", pvbuild.OfClass("missing"))).withStorage()
		w.start()
		w.settle()
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			w.wantClaim(name, v1.ClaimPending)
		}
		w.events.want(t, `a: Warning ProvisioningFailed failed to provision volume with StorageClass "bad": invalid parameters.bad`)
		w.events.want(t, `b: Warning ProvisioningFailed failed to provision volume with StorageClass "unknown": no volume plugin is named "kubernetes.io/nix"`)
		w.events.want(t, `c: Normal ExternalProvisioning Waiting for a volume to be created either by the external provisioner 'csi.example.com'`)
		w.events.want(t, `d: Normal FailedBinding no persistent volumes available for this claim`)
		w.events.want(t, `e: Warning ProvisioningFailed storageclass.storage.k8s.io "missing" not found`)
		if got := w.claim("c").Annotations["volume.kubernetes.io/storage-provisioner"]; got != "csi.example.com" {
			t.Errorf("the external provisioner is not told: %q", got)
		}
		w.create(pvbuild.NewPV("pvc-uid-c", "1Gi", pvbuild.Class("external"), pvbuild.ForClaim("c", "uid-c"), withPolicy(v1.PersistentVolumeReclaimDelete), func(pv *v1.PersistentVolume) {
			pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "csi.example.com"}
		}))
		w.create(storageClass("missing", made))
		w.settle()
		w.wantBound("c", "pvc-uid-c")
		w.wantBound("e", "pvc-uid-e")
		// What others have provisioned others delete.
		w.delete("PersistentVolumeClaim", "ops", "c")
		w.settle()
		w.wantPV("pvc-uid-c", v1.VolumeReleased)
		// Nothing was made for a, which so can go at once.
		w.delete("PersistentVolumeClaim", "ops", "a")
		w.settle()
		w.wantGone("PersistentVolumeClaim", "ops", "a")
	})
}

func TestAClaimThatGoesWhileItsVolumeIsMade(t *testing.T) {
	for _, uncertain := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, storageClass("fast", made)).withStorage()
			w.start()
			broken := errors.New("the server does not answer")
			if !uncertain {
				broken = volume.NothingDone(broken)
			}
			w.storage.fail(broken)
			w.create(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
			w.settle()
			w.events.want(t, `data: Warning ProvisioningFailed failed to provision volume with StorageClass "fast": the server does not answer`)
			w.delete("PersistentVolumeClaim", "ops", "data")
			time.Sleep(time.Second)
			synctest.Wait()
			if !uncertain {
				w.wantGone("PersistentVolumeClaim", "ops", "data")
				return
			}
			if w.claim("data").DeletionTimestamp == nil {
				t.Error("the claim is not being deleted")
			}
			w.storage.fail(nil)
			w.settle()
			w.wantGone("PersistentVolumeClaim", "ops", "data")
			w.wantGone("PersistentVolume", "", "pvc-uid-data")
			if left := w.stored(); len(left) > 0 {
				t.Errorf("storage is left: %v", left)
			}
		})
	}
}

func TestWaitForFirstConsumerProvisionsOnTheSelectedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storageClass("fast", made, waitForConsumer)
		c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"a"}}}}}
		w := newWorld(t, c, pvbuild.NewPV("free", "1Gi", pvbuild.Class("fast")), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))).withStorage()
		w.start()
		w.settle()
		w.wantClaim("data", v1.ClaimPending)
		claim := w.claim("data").DeepCopy()
		claim.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "node7"}
		if _, err := w.api.Update(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		w.settle()
		// There is no such node: the scheduler is to choose another.
		if node, still := w.claim("data").Annotations["volume.kubernetes.io/selected-node"]; still {
			t.Errorf("it is still to be made on %q; events: %s", node, w.events)
		}
		node := &v1.Node{}
		node.Name = "node7"
		w.create(node)
		claim = w.claim("data").DeepCopy()
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, "volume.kubernetes.io/selected-node", "node7")
		if _, err := w.api.Update(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.wantBound("data", "pvc-uid-data")
		pv := w.pv("pvc-uid-data")
		if onNode, _ := claimbinding.MatchesNode(pv, nil, "node8"); onNode || pv.Annotations["example.com/topologies"] != "1" {
			t.Errorf("it was not made for that node: %+v", pv)
		}
	})
}

// A volume that was made for a claim and is deleted before the claim has it is made
// again, of the same storage; if the claim goes meanwhile, that goes too.
func TestAMadeVolumeIsDeletedBeforeItsClaimHasIt(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, storageClass("fast", made)).withStorage()
			w.start()
			remove := w.client.Inject(fault.Fault[objectstest.Call]{Match: func(c objectstest.Call) bool {
				claim, ok := c.Object.(*v1.PersistentVolumeClaim)
				return ok && claim.Spec.VolumeName != ""
			}, Err: errors.New("the API does not answer")})
			w.create(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
			w.settle()
			w.delete("PersistentVolume", "", "pvc-uid-data")
			if leaves {
				w.delete("PersistentVolumeClaim", "ops", "data")
			}
			w.settle()
			remove()
			w.settle()
			if !leaves {
				w.wantBound("data", "pvc-uid-data")
				return
			}
			w.wantGone("PersistentVolumeClaim", "ops", "data")
			w.wantGone("PersistentVolume", "", "pvc-uid-data")
			if left := w.stored(); len(left) > 0 {
				t.Errorf("storage is left: %v", left)
			}
		})
	}
}

// The same, whatever call the controller dies at: there is one storage for the claim
// that stays, and none for one that goes meanwhile.
func TestAMadeVolumeThatIsMadeAgainSurvivesACrashAtEveryCall(t *testing.T) {
	prepare := func(t *testing.T) *world {
		claim := pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"))
		claim.Finalizers = []string{"podvol.io/provisioning", "kubernetes.io/pvc-protection"}
		pv := pvbuild.NewPV("pvc-uid-data", "1Gi", pvbuild.Class("fast"), withPolicy(v1.PersistentVolumeReclaimDelete), pvbuild.ForClaim("data", "uid-data"), boundByController)
		pv.Annotations["pv.kubernetes.io/provisioned-by"] = storagePlugin
		pv.Finalizers = []string{"kubernetes.io/pv-protection", "kubernetes.io/pv-controller"}
		w := newWorld(t, storageClass("fast", made), claim, pv, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "storage", Name: "pvc-uid-data"}}).withStorage()
		w.delete("PersistentVolume", "", "pvc-uid-data")
		return w
	}
	sweepCrashes(t, 8, prepare, func(*world) {}, func(w *world) {
		w.wantBound("data", "pvc-uid-data")
		if left := w.stored(); !slices.Equal(left, []string{"pvc-uid-data"}) {
			w.t.Errorf("storage %v exists", left)
		}
	})
	sweepCrashes(t, 8, prepare, func(w *world) { w.delete("PersistentVolumeClaim", "ops", "data") }, func(w *world) {
		w.wantGone("PersistentVolumeClaim", "ops", "data")
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		if left := w.stored(); len(left) > 0 {
			w.t.Errorf("storage %v is left", left)
		}
	})
}
