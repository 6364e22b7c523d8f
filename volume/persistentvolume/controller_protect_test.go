package persistentvolume_test

import (
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
)

func onNode(pod *v1.Pod, name string) *v1.Pod {
	pod.Name, pod.UID, pod.Spec.NodeName = name, "", "node1"
	return pod
}

func TestAClaimInUseIsProtected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unplaced := pvbuild.PodOf("data")
		unplaced.Name, unplaced.UID = "unplaced", ""
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("data", "1Gi"), pvbuild.NewClaim("unused", "1Gi", pvbuild.OfClass("nix")), onNode(pvbuild.PodOf("data"), "a"), onNode(pvbuild.PodOf("data"), "b"), unplaced)
		w.start()
		w.settle()
		if c, pv := w.claim("data"), w.pv("pv"); !slices.Contains(c.Finalizers, "kubernetes.io/pvc-protection") || !slices.Contains(pv.Finalizers, "kubernetes.io/pv-protection") {
			t.Errorf("finalizers of the claim: %v, of the volume: %v", c.Finalizers, pv.Finalizers)
		}
		for _, name := range []string{"data", "unused"} {
			w.delete("PersistentVolumeClaim", "ops", name)
		}
		w.delete("PersistentVolume", "", "pv")
		w.settle()
		w.wantGone("PersistentVolumeClaim", "ops", "unused")
		w.wantBound("data", "pv")
		w.delete("Pod", "ops", "a")
		w.settle()
		w.wantBound("data", "pv")
		w.delete("Pod", "ops", "b")
		w.settle()
		w.wantGone("PersistentVolumeClaim", "ops", "data")
		w.wantGone("PersistentVolume", "", "pv")
	})
}

// A pod that the cache has not heard of protects its claim, too.
func TestAStaleCacheUnprotectsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi"), pvbuild.NewClaim("data", "1Gi"))
		w.start()
		w.settle()
		release := w.client.Hold("Pod")
		w.create(onNode(pvbuild.PodOf("data"), "late"))
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantBound("data", "pv")
		release()
		w.settle()
		w.delete("Pod", "ops", "late")
		w.settle()
		w.wantGone("PersistentVolumeClaim", "ops", "data")
		w.wantPV("pv", v1.VolumeReleased)
	})
}

// The claim of an ephemeral volume is protected by its own pod alone, and only
// as long as that needs it.
func TestAnEphemeralClaimIsProtectedByItsPod(t *testing.T) {
	for name, tc := range map[string]struct {
		own, ended bool
		protected  bool
	}{
		"its pod":                    {own: true, protected: true},
		"a pod that has shut down":   {own: true, ended: true},
		"another's of the same name": {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pod := onNode(pvbuild.PodOf(), "web")
				pod.UID = "web"
				pod.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}}}
				pod.Finalizers = []string{"example.com/late"}
				claim := pvbuild.NewClaim("web-scratch", "1Gi")
				if tc.own {
					claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))}
				}
				w := newWorld(t, claim, pod)
				w.start()
				w.settle()
				if tc.ended {
					w.delete("Pod", "ops", "web")
					stored, err := w.store.Get(t.Context(), volume.NewObjectRef("Pod", "ops", "web"))
					if err != nil {
						t.Fatal(err)
					}
					ended := stored.(*v1.Pod).DeepCopy()
					ended.DeletionGracePeriodSeconds = new(int64(0))
					if _, err := w.api.Update(t.Context(), ended); err != nil {
						t.Fatal(err)
					}
				}
				w.delete("PersistentVolumeClaim", "ops", "web-scratch")
				w.settle()
				if tc.protected {
					w.wantClaim("web-scratch", v1.ClaimPending)
				} else {
					w.wantGone("PersistentVolumeClaim", "ops", "web-scratch")
				}
			})
		})
	}
}

// A pod of which the cache never hears, since it goes first, keeps its claim no
// longer than it is there.
func TestAPodThatTheCacheNeverKnewLetsItsClaimGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewClaim("data", "1Gi"))
		w.start()
		w.settle()
		release := w.client.Hold("Pod")
		w.create(onNode(pvbuild.PodOf("data"), "short"))
		w.delete("PersistentVolumeClaim", "ops", "data")
		w.settle()
		w.wantClaim("data", v1.ClaimPending)
		w.delete("Pod", "ops", "short")
		w.settle()
		w.wantGone("PersistentVolumeClaim", "ops", "data")
		release()
	})
}
