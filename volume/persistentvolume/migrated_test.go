package persistentvolume_test

import (
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
)

// In a cluster, a driver's own provisioner makes and deletes the volumes of an in-tree plugin
// that it has taken over: claims and volumes name it, and nothing is made or deleted here.
func TestInTreeClassOfAnExternalDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const plugin, driver = "kubernetes.io/gce-pd", "pd.csi.storage.gke.io"
		class := storageClass("old", func(c *storagev1.StorageClass) { c.Provisioner = plugin })
		w := newWorld(t, class, pvbuild.NewClaim("a", "1Gi", pvbuild.OfClass("old"))).withStorage()
		w.config.MigratedTo = func(name string) string {
			if name == plugin {
				return driver
			}
			return ""
		}
		w.start()
		w.settle()
		w.events.want(t, `a: Normal ExternalProvisioning Waiting for a volume to be created either by the external provisioner 'pd.csi.storage.gke.io'`)
		if got := w.claim("a").Annotations["volume.kubernetes.io/storage-provisioner"]; got != driver {
			t.Errorf("the claim is given to %q", got)
		}
		w.create(pvbuild.NewPV("pvc-uid-a", "1Gi", pvbuild.Class("old"), pvbuild.ForClaim("a", "uid-a"), withPolicy(v1.PersistentVolumeReclaimDelete), func(pv *v1.PersistentVolume) {
			pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": plugin}
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{GCEPersistentDisk: &v1.GCEPersistentDiskVolumeSource{PDName: "disk"}}
		}))
		w.settle()
		w.wantBound("a", "pvc-uid-a")
		if got := w.pv("pvc-uid-a").Annotations["pv.kubernetes.io/migrated-to"]; got != driver {
			t.Errorf("the volume is migrated to %q", got)
		}
		w.delete("PersistentVolumeClaim", "ops", "a")
		w.settle()
		w.wantPV("pvc-uid-a", v1.VolumeReleased)
	})
}
