package nfs_test

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/plugins/nfs"
)

// The sample of a storage class can be copied.
func TestSampleClassProvisions(t *testing.T) {
	set, err := manifest.Load("../../../testdata/nfs/class.yaml")
	if err != nil {
		t.Fatal(err)
	}
	class, err := objects.Get[*storagev1.StorageClass](t.Context(), set, volume.NewObjectRef("StorageClass", "", "nfs-dynamic"))
	if err != nil {
		t.Fatal(err)
	}
	claim, err := objects.Get[*v1.PersistentVolumeClaim](t.Context(), set, volume.NewObjectRef("PersistentVolumeClaim", "shop", "orders"))
	if err != nil {
		t.Fatal(err)
	}
	if class.Provisioner != nfs.PluginName || claim.Spec.StorageClassName == nil || *claim.Spec.StorageClassName != class.Name {
		t.Errorf("class %q of provisioner %q, claim %v", class.Name, class.Provisioner, claim.Spec.StorageClassName)
	}
	p, h := newPlugin(t)
	share := t.TempDir()
	h.Fake.Serve(class.Parameters["server"]+":"+class.Parameters["share"], share)
	claim = claim.DeepCopy()
	claim.UID = "51f0"
	pv, err := provision(p, volume.VolumeOptions{
		PVName: "pvc-51f0", PVC: claim, Parameters: class.Parameters, MountOptions: class.MountOptions, PersistentVolumeReclaimPolicy: *class.ReclaimPolicy,
	})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(share, "shop/orders")); err != nil || info.Mode() != os.ModeDir|os.ModeSetgid|0o770 ||
		pv.Spec.NFS.Path != "/export/dynamic/shop/orders" || pv.Annotations[nfs.OnDeleteAnnotation] != "archive" {
		t.Errorf("%v, %v, volume %+v", info, err, pv)
	}
}
