package persistentvolume_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
)

const besideFinalizer = "external-provisioner.volume.kubernetes.io/finalizer"

// Whose policy is changed to Retain is kept back by nothing; whose policy is changed to
// Delete stays until its storage is gone.
func TestPoliciesThatChangeBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("made", madeBeside), pvbuild.NewClaim("data", "2Gi", pvbuild.OfClass("made"))).beside()
		w.start()
		w.settle()
		pv := w.pv("pvc-uid-data").DeepCopy()
		pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		if _, err := w.api.Update(t.Context(), pv); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.delete("PersistentVolume", "", "pvc-uid-data")
		w.settle()
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		if left := w.stored(); len(left) != 1 {
			t.Errorf("the storage that was to be kept is gone: %v", left)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		retain := v1.PersistentVolumeReclaimRetain
		kept := func(c *storagev1.StorageClass) { c.ReclaimPolicy = &retain }
		w := newWorld(t, storageClass("made", madeBeside, kept), pvbuild.NewClaim("data", "2Gi", pvbuild.OfClass("made"))).beside()
		w.start()
		w.settle()
		pv := w.pv("pvc-uid-data").DeepCopy()
		if slices.Contains(pv.Finalizers, besideFinalizer) {
			t.Errorf("the finalizers of a retained volume are %v", pv.Finalizers)
		}
		pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimDelete
		if _, err := w.api.Update(t.Context(), pv); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if pv := w.pv("pvc-uid-data"); !slices.Contains(pv.Finalizers, besideFinalizer) {
			t.Errorf("the finalizers are %v", pv.Finalizers)
		}
		w.delete("PersistentVolume", "", "pvc-uid-data")
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		if left := w.stored(); len(left) > 0 {
			t.Errorf("storage is left: %v", left)
		}
	})
}

// A claim that has another volume has no data in the one that was made for it.
func TestAClaimHasAnotherVolumeBeside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pv := pvbuild.NewPV("pvc-uid-data", "2Gi", withPolicy(v1.PersistentVolumeReclaimDelete), pvbuild.ForClaim("data", "uid-data"), pvbuild.InPhase(v1.VolumeBound))
		pv.Spec.StorageClassName = "made"
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, "pv.kubernetes.io/provisioned-by", besideName)
		pv.Finalizers = []string{besideFinalizer}
		other := pvbuild.NewPV("other", "2Gi", pvbuild.ForClaim("data", "uid-data"), pvbuild.InPhase(v1.VolumeBound))
		other.Spec.StorageClassName = "made"
		c := pvbuild.NewClaim("data", "2Gi", pvbuild.OfClass("made"))
		c.Spec.VolumeName = "other"
		metav1.SetMetaDataAnnotation(&c.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
		w := newWorld(t, storageClass("made", madeBeside), pv, other, c).beside()
		w.start()
		time.Sleep(time.Hour)
		w.settle()
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
	})
}

// The finalizer alone says nothing: another instance, or a user, may have written it.
func TestTheFinalizerOfSomebodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs, waits := storageClass("theirs"), storageClass("mine", madeBeside, waitForConsumer)
		theirs.Provisioner = "other.example.com"
		begun := func(c *v1.PersistentVolumeClaim) { c.Finalizers = append(c.Finalizers, "podvol.io/provisioning") }
		foreign := func(c *v1.PersistentVolumeClaim) {
			begun(c)
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, "podvol.io/provisioning", `{"class":{"metadata":{"name":"theirs"},"provisioner":"other.example.com"}}`)
		}
		deleted := pvbuild.NewClaim("d", "1Gi", pvbuild.OfClass("theirs"), foreign)
		deleted.DeletionTimestamp = new(metav1.Now())
		w := newWorld(t, theirs, waits, pvbuild.NewClaim("b", "1Gi", pvbuild.OfClass("theirs"), foreign), deleted, pvbuild.NewClaim("a", "1Gi", pvbuild.OfClass("theirs"), begun), pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("mine"), begun)).withStorage()
		w.config.Provisioners = map[string]string{besideName: storagePlugin}
		w.start()
		w.settle()
		for _, call := range w.client.Calls() {
			if call.Verb != "get" && call.Verb != "list" {
				t.Errorf("%s %s", call.Verb, call.Ref)
			}
		}
		if w.events.count("") > 0 {
			t.Errorf("events: %s", w.events)
		}
	})
}

// A claim that nobody lets go says so, and what its user can do.
func TestAClaimThatDoesNotSayWhatWasBegun(t *testing.T) {
	for name, says := range map[string]string{"nothing": "", "damaged": `{"class":{"metadata"`} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("made"))
				c.Finalizers = []string{"podvol.io/provisioning"}
				if says != "" {
					metav1.SetMetaDataAnnotation(&c.ObjectMeta, "podvol.io/provisioning", says)
				}
				w := newWorld(t, c).beside()
				w.start()
				w.settle()
				if w.events.count("") > 0 {
					t.Errorf("events of a claim that nobody deletes: %s", w.events)
				}
				w.delete("PersistentVolumeClaim", "ops", "data")
				w.settle()
				w.events.want(t, "data: Warning ProvisioningCleanupFailed")
				w.wantEvent("data: Warning ProvisioningCleanupFailed", `"pvc-uid-data"`, "remove the finalizer podvol.io/provisioning")
				if !isProvisioning(w.claim("data")) {
					t.Error("it was let go")
				}
			})
		})
	}
}
