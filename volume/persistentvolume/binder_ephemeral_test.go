package persistentvolume_test

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// scratchPod has an ephemeral volume, "scratch".
func scratchPod(name string) *v1.Pod {
	pod := onNode(pvbuild.PodOf(), name)
	pod.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
		VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
			Spec:       pvbuild.NewClaim("", "1Gi", pvbuild.OfClass("fast")).Spec,
		},
	}}}}
	return pod
}

func TestEphemeralClaimsComeAndGoWithTheirPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, storageClass("fast", made), scratchPod("web")).withStorage()
		w.start()
		w.settle()
		c := w.claim("web-scratch")
		w.wantBound("web-scratch", "pvc-"+string(c.UID))
		pod, err := objects.Get[*v1.Pod](t.Context(), w.store, volume.NewObjectRef("Pod", "ops", "web"))
		if err != nil {
			t.Fatal(err)
		}
		if !metav1.IsControlledBy(c, pod) || c.Labels["app"] != "web" {
			t.Errorf("the claim is %+v", c)
		}
		// A pod of the same name gets a volume of its own.
		w.delete("Pod", "ops", "web")
		w.create(scratchPod("web"))
		w.settle()
		next := w.claim("web-scratch")
		if next.UID == c.UID {
			t.Error("the new pod is shown the old one's data")
		}
		w.wantBound("web-scratch", "pvc-"+string(next.UID))
		w.delete("Pod", "ops", "web")
		w.settle()
		w.wantGone("PersistentVolumeClaim", "ops", "web-scratch")
		if left := w.stored(); len(left) > 0 {
			t.Errorf("storage is left: %v", left)
		}
	})
}

func TestAnEphemeralVolumeTakesNobodysClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi", pvbuild.Class("fast")), pvbuild.NewClaim("web-scratch", "1Gi", pvbuild.OfClass("fast")), scratchPod("web"))
		w.start()
		w.settle()
		w.events.want(t, "web: Warning FailedBinding ephemeral volume scratch: PVC ops/web-scratch was not created for the pod")
		w.wantBound("web-scratch", "pv")
		w.delete("PersistentVolumeClaim", "ops", "web-scratch")
		w.settle()
		if owner := metav1.GetControllerOf(w.claim("web-scratch")); owner == nil || owner.Name != "web" {
			t.Errorf("the claim belongs to %v", owner)
		}
	})
}

// A pod that the cache has not heard of keeps its claim.
func TestAStaleCacheDeletesNoClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		w.settle()
		release := w.client.Hold("Pod")
		defer release()
		pod := scratchPod("web")
		w.create(pod)
		stored, err := w.store.Get(t.Context(), volume.NewObjectRef("Pod", "ops", "web"))
		if err != nil {
			t.Fatal(err)
		}
		claim := pvbuild.NewClaim("web-scratch", "1Gi", pvbuild.OfClass("nix"))
		claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(stored, v1.SchemeGroupVersion.WithKind("Pod"))}
		w.create(claim)
		w.settle()
		if w.claim("web-scratch").DeletionTimestamp != nil {
			t.Error("the claim of a pod that exists was deleted")
		}
	})
}

func TestEphemeralClaimsSurviveACrashAtEveryCall(t *testing.T) {
	sweepCrashes(t, 15, func(t *testing.T) *world {
		w := newWorld(t, storageClass("fast", made), scratchPod("stays"), scratchPod("goes")).withStorage()
		time.AfterFunc(time.Minute, func() {
			_ = w.api.Delete(t.Context(), volume.NewObjectRef("Pod", "ops", "goes"), objects.Preconditions{})
		})
		return w
	}, func(*world) {}, func(w *world) {
		w.wantBound("stays-scratch", "pvc-"+string(w.claim("stays-scratch").UID))
		w.wantGone("PersistentVolumeClaim", "ops", "goes-scratch")
		if left := w.stored(); len(left) != 1 {
			w.t.Errorf("storage %v exists", left)
		}
	})
}
