package persistentvolume_test

import (
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume/release"
)

func TestVolumeMadeWithOtherLabelsThanSelected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made), pvbuild.NewClaim("c", "1Gi", pvbuild.OfClass("fast"), pvbuild.Selecting("tier", metav1.LabelSelectorOpIn, "gold"))).withStorage()
		w.start()
		w.settle()
		w.wantUnbound("c", [][]string{{"c: Warning ProvisioningFailed", "do not match the claim's selector"}})
		w.storage.distort(changedPV(pvbuild.Labelled("tier", "gold")))
		w.settle()
		w.wantBound("c", "pvc-uid-c")
	})
}

// What a plugin has made and the claim cannot have is deleted through the plugin
// once the claim does not wait for it any more.
func TestUnfitStorageIsDeletedAgain(t *testing.T) {
	for name, leave := range map[string]func(*world){
		"the claim goes": func(w *world) { w.delete("PersistentVolumeClaim", "ops", "c") },
		"the claim gets another volume": func(w *world) {
			w.create(pvbuild.NewPV("other", "2Gi", pvbuild.ForClaim("c", "uid-c"), pvbuild.Class("fast")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, storageClass("fast", made)).withStorage()
				w.start()
				w.storage.distort(changedPV(capacity("1Gi")))
				w.create(pvbuild.NewClaim("c", "2Gi", pvbuild.OfClass("fast")))
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

// A node that a claim which is bound at once names, as one from a back-up may,
// means nothing.
func TestSelectedNodeOfAClaimThatIsBoundAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast"), func(c *v1.PersistentVolumeClaim) {
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, "volume.kubernetes.io/selected-node", "gone")
		})).withStorage()
		w.start()
		w.settle()
		w.wantBound("data", "pvc-uid-data")
		if node := w.claim("data").Annotations["volume.kubernetes.io/selected-node"]; node != "" {
			t.Errorf("it still names %q", node)
		}
	})
}

// named is a plugin with the sources of another.
type named struct {
	*storage
	name string
}

func (n *named) GetPluginName() string { return n.name }

func TestVolumeIsDeletedByThePluginThatMadeIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
		other := &named{name: "example.com/other"}
		w.plugins = func(client *objectstest.Client) *volume.VolumePluginMgr {
			w.storage = &storage{client: client, law: w.law}
			other.storage = &storage{client: client, law: w.law}
			releases := &release.Verifier{Objects: client}
			plugins, err := volume.NewVolumePluginMgr([]volume.VolumePlugin{other, w.storage}, &volume.Host{Releases: releases})
			if err != nil {
				t.Fatal(err)
			}
			releases.Plugins = plugins
			return plugins
		}
		w.start()
		w.settle()
		w.wantBound("data", "pvc-uid-data")
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantGone("PersistentVolume", "", "pvc-uid-data")
		if other.asked() > 0 || len(w.stored()) > 0 {
			t.Errorf("the other plugin was asked %d times; storage %q", other.asked(), w.stored())
		}
	})
}
