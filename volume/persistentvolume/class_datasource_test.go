package persistentvolume_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// copyOf is a claim that is to have the content of something else.
func copyOf(kind, name string) pvbuild.ClaimOption {
	return func(c *v1.PersistentVolumeClaim) {
		c.Spec.DataSource = &v1.TypedLocalObjectReference{Kind: kind, Name: name}
		c.Spec.DataSourceRef = &v1.TypedObjectReference{Kind: kind, Name: name}
	}
}

// A claim with a data source never gets a volume that has another content, and is
// told what would help; a volume that a populator has filled is its own.
func TestClaimWithADataSourceGetsNoOtherContent(t *testing.T) {
	for name, tc := range map[string]struct {
		class []metav1.Object
		claim pvbuild.ClaimOption
	}{
		"no class":                {nil, pvbuild.OfClass("")},
		"a class of volumes":      {[]metav1.Object{storageClass("c")}, pvbuild.OfClass("c")},
		"a class that makes some": {[]metav1.Object{storageClass("c", made)}, pvbuild.OfClass("c")},
		"only a reference": {nil, func(c *v1.PersistentVolumeClaim) {
			pvbuild.OfClass("")(c)
			c.Spec.DataSource = nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, pvbuild.NewClaim("copy", "1Gi", copyOf("VolumeSnapshot", "monday"), tc.claim)).withStorage()
				for _, class := range tc.class {
					w.create(class)
				}
				w.start()
				w.settle()
				free := pvbuild.NewPV("free", "1Gi", pvbuild.Class(*w.claim("copy").Spec.StorageClassName))
				w.create(free)
				w.settle()
				w.wantUnbound("copy", [][]string{{"copy: Warning ProvisioningFailed", `VolumeSnapshot "monday"`, "spec.volumeName"}})
				w.wantPV("free", v1.VolumeAvailable)
				w.wantQuiet(0)
				if w.storage.asked() > 0 || len(w.claim("copy").Finalizers) > 1 {
					t.Errorf("the plugin was asked %d times; finalizers %q", w.storage.asked(), w.claim("copy").Finalizers)
				}
				w.create(pvbuild.NewPV("filled", "1Gi", pvbuild.ForClaim("copy", "uid-copy"), pvbuild.Class("c")))
				w.settle()
				w.wantBound("copy", "filled")
			})
		})
	}
}

func TestClaimWithADataSourceMayNameItsVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("filled", "1Gi"), pvbuild.NewClaim("copy", "1Gi", copyOf("PersistentVolumeClaim", "data"), pvbuild.Naming("filled")))
		w.start()
		w.settle()
		w.wantBound("copy", "filled")
	})
}

func TestPlacingAPodWhoseClaimHasADataSource(t *testing.T) {
	for name, tc := range map[string]struct {
		option  func(*storagev1.StorageClass)
		refused bool
	}{
		"no provisioner":       {func(*storagev1.StorageClass) {}, true},
		"a plugin":             {made, true},
		"an external provider": {provisionedBy("csi.example.com"), false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storageClass("local", waitForConsumer, tc.option), newNode("node1"), localPV("free", "1Gi", "node1"),
					pvbuild.NewClaim("copy", "1Gi", pvbuild.OfClass("local"), copyOf("VolumeSnapshot", "monday"))).withStorage()
				w.start()
				w.settle()
				node, err := w.place(pvbuild.PodOf("copy"))
				switch {
				case tc.refused && (!errors.Is(err, index.ErrNeedsData) || !strings.Contains(err.Error(), `VolumeSnapshot "monday"`)):
					t.Errorf("placed on %q, %v", node, err)
				case !tc.refused && (err != nil || w.claim("copy").Annotations["volume.kubernetes.io/selected-node"] != "node1"):
					t.Errorf("placed on %q, %v", node, err)
				}
				w.settle()
				w.wantClaim("copy", v1.ClaimPending)
			})
		})
	}
}
