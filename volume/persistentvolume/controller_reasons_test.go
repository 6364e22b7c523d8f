package persistentvolume_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
)

func madeForOther(pv *v1.PersistentVolume) {
	pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": storagePlugin}
	pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "ops", Name: "other", UID: "uid-other"}
	pv.Status.Phase = v1.VolumeBound
}

func noClass(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = nil }

// What is said of a claim names what its user can change, and all of it.
func TestTheReasonNamesWhatToDo(t *testing.T) {
	labelled := func(c *v1.PersistentVolumeClaim) {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"disk": "ssd"}}
	}
	for name, tc := range map[string]struct {
		claim *v1.PersistentVolumeClaim
		all   []metav1.Object
		says  []string
		not   string
	}{
		"no class, and no default": {pvbuild.NewClaim("data", "1Gi", noClass), nil,
			[]string{"names no storage class", "no default one", "name one, mark one as the default, or create a PersistentVolume without class"}, ""},
		"no class, and volumes of another": {pvbuild.NewClaim("data", "1Gi", noClass), []metav1.Object{pvbuild.NewPV("pv", "1Gi", pvbuild.Class("fast"))},
			[]string{"no default one", `other storage class (pv: class "fast")`}, ""},
		"a volume without class is wanted": {pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("")), nil, []string{"there is no PersistentVolume; create one"}, "default"},
		"no such class, volumes too small": {pvbuild.NewClaim("data", "10Ti", pvbuild.OfClass("x")), []metav1.Object{pvbuild.NewPV("small", "1Gi", pvbuild.Class("x"))},
			[]string{`storageclass.storage.k8s.io "x" not found; create it`, "too small (small: 1Gi of 10Ti)"}, ""},
		"no such class, other labels": {pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("x"), labelled), []metav1.Object{pvbuild.NewPV("plain", "1Gi", pvbuild.Class("x"))},
			[]string{`"x" not found; create it`, "labels do not match the selector (plain)"}, ""},
		"volumes were made for others": {pvbuild.NewClaim("data", "10Gi"), []metav1.Object{pvbuild.NewPV("pvc-uid-other", "10Gi", madeForOther), pvbuild.NewPV("small", "1Gi")},
			[]string{"too small (small: 1Gi of 10Gi)"}, "pvc-uid-other"},
		"what another has left": {pvbuild.NewClaim("data", "10Gi"), []metav1.Object{pvbuild.NewPV("left", "10Gi", madeForOther, func(pv *v1.PersistentVolume) {
			pv.Status.Phase = v1.VolumeReleased
			pv.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		})}, []string{"belongs to another claim (left: ops/other)"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, append(tc.all, tc.claim)...)
				if strings.Contains(name, "made for others") {
					w.create(pvbuild.NewClaim("other", "10Gi", func(c *v1.PersistentVolumeClaim) {
						c.Spec.VolumeName = "pvc-uid-other"
						c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
					}))
				}
				w.start()
				w.settle()
				err := w.controller.Explain(types.NamespacedName{Namespace: "ops", Name: "data"})
				if !errors.Is(err, claimbinding.ErrUnbound) {
					t.Fatalf("err = %v", err)
				}
				for _, want := range tc.says {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("want %q: %v", want, err)
					}
				}
				if tc.not != "" && strings.Contains(err.Error(), tc.not) {
					t.Errorf("why %q? %v", tc.not, err)
				}
			})
		})
	}
}

// A pod whose class makes nothing for the node is told so, not only that there is
// no volume.
func TestAClassThatMakesNothingForTheNodeSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		only := func(c *storagev1.StorageClass) {
			c.AllowedTopologies = []v1.TopologySelectorTerm{{MatchLabelExpressions: []v1.TopologySelectorLabelRequirement{{Key: v1.LabelHostname, Values: []string{"node9"}}}}}
		}
		w := newWorld(t, storageClass("topo", made, waitForConsumer, only), pvbuild.NewPV("small", "1Mi", pvbuild.Class("topo")), pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("topo"))).withStorage()
		w.start()
		w.settle()
		_, err := w.controller.Place(t.Context(), pvbuild.PodOf("data"), nodes()[:1])
		for _, want := range []string{`storage class "topo" makes volumes only for nodes with kubernetes.io/hostname in (node9), which "node1" is not: label the node`, "too small (small: 1Mi of 1Gi)"} {
			if !errors.Is(err, claimbinding.ErrUnbound) || !strings.Contains(err.Error(), want) {
				t.Errorf("want %q: %v", want, err)
			}
		}
	})
}

// What is refused for what it says is told once, seldom tried again, and at once
// when its class is another.
func TestWhatTheClassSaysWrongIsToldOnceAndSeldomTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made)).withStorage()
		var mu sync.Mutex
		var told []string
		data := types.NamespacedName{Namespace: "ops", Name: "data"}
		w.config.Explained = func(types.NamespacedName) {
			why := fmt.Sprint(w.controller.Explain(data))
			mu.Lock()
			defer mu.Unlock()
			told = append(told, why)
		}
		w.config.Workers = 1
		w.startFailing(volume.Invalid("parameters.colour", "is not known"))
		w.create(pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		mu.Lock()
		if len(told) > 2 || !strings.Contains(told[len(told)-1], "failed to provision") { // first that it is being made
			t.Errorf("told %q", told)
		}
		mu.Unlock()
		if tries := w.storage.asked(); tries == 0 || tries > 6 {
			t.Errorf("tried %d times in 10 minutes", tries)
		}
		w.storage.fail(nil)
		w.replaceClass(storageClass("fast", made))
		time.Sleep(time.Second)
		synctest.Wait()
		w.wantBound("data", "pvc-uid-data")
	})
}

// A volume that nobody here can empty says what its user can do.
func TestWhatCannotBeRecycledSaysWhatToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		elsewhere := func(pv *v1.PersistentVolume) {
			pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/data"}}
		}
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi", withPolicy(v1.PersistentVolumeReclaimRecycle), elsewhere), pvbuild.NewClaim("data", "1Gi")).withStorage()
		w.start()
		w.settle()
		w.wantBound("data", "pv")
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantPV("pv", v1.VolumeFailed)
		if message := w.pv("pv").Status.Message; !strings.Contains(message, "empty it by hand, then delete the PersistentVolume and declare it anew") {
			t.Errorf("message %q", message)
		}
	})
}
