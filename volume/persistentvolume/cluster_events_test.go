package persistentvolume_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// withEphemeral is a pod with ephemeral volumes of these names.
func withEphemeral(names ...string) *v1.Pod {
	pod := pvbuild.PodOf()
	for _, name := range names {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{
			VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{Spec: pvbuild.NewClaim("", "1Gi").Spec},
		}}})
	}
	return pod
}

// What is wrong with one volume of a pod is told once, whatever is wrong with
// another.
func TestEachEphemeralVolumeOfAPodIsToldOfOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewClaim("pod-a", "1Gi"), pvbuild.NewClaim("pod-b", "1Gi"), withEphemeral("a", "b"))
		w.start()
		w.settle()
		for i := range 5 {
			stored, err := objects.Get[*v1.Pod](t.Context(), w.store, volume.NewObjectRef("Pod", "ops", "pod"))
			if err != nil {
				t.Fatal(err)
			}
			next := stored.DeepCopy()
			metav1.SetMetaDataAnnotation(&next.ObjectMeta, "beat", fmt.Sprint(i))
			if _, err := w.api.Update(t.Context(), next); err != nil {
				t.Fatal(err)
			}
			w.settle()
		}
		for _, name := range []string{"a", "b"} {
			w.events.want(t, fmt.Sprintf("pod: Warning FailedBinding ephemeral volume %s: PVC ops/pod-%s was not created for the pod", name, name))
		}
	})
}

// Whoever waits for a pod is told that the claim of its volume is refused.
func TestAnEphemeralClaimThatTheAPIRefusesIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start()
		remove := w.client.Inject(fault.Fault[objectstest.Call]{Match: func(c objectstest.Call) bool {
			return c.Verb == "create" && c.Ref.Kind == "PersistentVolumeClaim"
		}, Err: errors.New("exceeded quota")})
		w.create(withEphemeral("a"))
		w.settle()
		w.events.want(t, "pod: Warning FailedBinding ephemeral volume a: create PVC ops/pod-a: ")
		if !strings.Contains(w.events.String(), "exceeded quota") {
			t.Errorf("nobody knows why: %s", w.events)
		}
		remove()
		w.settle()
		w.wantClaim("pod-a", v1.ClaimPending)
	})
}

// A release that fails as the one before it did is told of, too.
func TestEachReleaseThatFailsIsToldOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pvbuild.NewPV("pv", "1Gi", withPolicy(v1.PersistentVolumeReclaimRecycle))).withStorage()
		w.start()
		for i, name := range []string{"a", "b"} {
			w.create(pvbuild.NewClaim(name, "1Gi"))
			w.settle()
			w.wantBound(name, "pv")
			w.storage.fail(errors.New("the server does not answer"))
			w.delete("PersistentVolumeClaim", "ops", name)
			w.settle()
			if n := w.events.count("pv: Warning VolumeFailedRecycle"); n != i+1 {
				t.Errorf("%d events after %d releases that failed", n, i+1)
			}
			w.storage.fail(nil)
			w.settle()
		}
	})
}
