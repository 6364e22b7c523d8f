package persistentvolume_test

import (
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestVolumeMadeWithOtherLabelsThanSelected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made), newClaim("c", "1Gi", ofClass("fast"), selecting("tier", metav1.LabelSelectorOpIn, "gold"))).withStorage()
		w.start()
		w.settle()
		w.wantUnbound("c", [][]string{{"c: Warning ProvisioningFailed", "do not match the claim's selector"}})
		w.storage.distort(changedPV(labelled("tier", "gold")))
		w.settle()
		w.wantBound("c", "pvc-uid-c")
	})
}

// What a plugin has made and the claim cannot have is deleted through the plugin
// once the claim does not wait for it any more.
func TestUnfitStorageIsDeletedAgain(t *testing.T) {
	for name, leave := range map[string]func(*world){
		"the claim goes":                func(w *world) { w.delete("PersistentVolumeClaim", "ops", "c") },
		"the claim gets another volume": func(w *world) { w.create(newPV("other", "2Gi", forClaim("c", "uid-c"), class("fast"))) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storageClass("fast", made), newClaim("c", "2Gi", ofClass("fast"))).withStorage()
				w.start()
				w.storage.distort(changedPV(capacity("1Gi")))
				w.settle()
				w.wantClaim("c", v1.ClaimPending)
				if got := w.stored(); len(got) != 1 {
					t.Fatalf("storage: %q", got)
				}
				leave(w)
				w.settle()
				if name == "the claim goes" {
					w.wantGone("PersistentVolumeClaim", "ops", "c")
				} else {
					w.wantBound("c", "other")
				}
				w.wantGone("PersistentVolume", "", "pvc-uid-c")
				if got := w.stored(); len(got) != 0 {
					t.Errorf("storage is left: %q", got)
				}
			})
		})
	}
}
