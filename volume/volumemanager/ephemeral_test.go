package volumemanager_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/volumemanager"
)

func ephemeralVolume(name string) v1.Volume {
	template := &v1.PersistentVolumeClaimTemplate{Spec: v1.PersistentVolumeClaimSpec{
		AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources:   v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
	}}
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: template}}}
}

func controlledBy(pod *v1.Pod, claim *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaim {
	claim = claim.DeepCopy()
	claim.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))}
	return claim
}

// An ephemeral volume is its pod's own claim, which a controller makes.
func TestEphemeralVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		pod := newPod("web", ephemeralVolume("scratch"))
		pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}}
		claim, pv := boundPair("web-scratch", "made")
		claim = controlledBy(pod, claim)
		manager, _ := w.start()
		if err := manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		row := statusOf(t, manager, "web")
		if row.State != volumemanager.StatePending || !errors.Is(row.Err, claimbinding.ErrUnbound) || !strings.Contains(row.Err.Error(), `"ops-test/web-scratch"`) {
			t.Errorf("before the claim is made: %+v", row)
		}
		w.add(claim, pv)
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		mounts, _, err := manager.ContainerMounts(t.Context(), pod.UID, "c", containermounts.Options{})
		if err != nil || len(mounts) != 1 || mounts[0].ReadOnly {
			t.Errorf("mounts %+v, %v; want it writable", mounts, err)
		}
		row = statusOf(t, manager, "web")
		entry, mounted, err := w.fake.Table().At(row.Path)
		if err != nil || !mounted || entry.ReadOnly() || row.Claim.Name != "web-scratch" {
			t.Errorf("row %+v, mount %+v, %t, %v; want it writable", row, entry, mounted, err)
		}
		if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		w.assertClean()
	})
}

// A claim that happens to have the name shows its data to nobody else.
func TestEphemeralVolumeTakesNoOthersClaim(t *testing.T) {
	pod := newPod("web", ephemeralVolume("scratch"))
	earlier := newPod("web")
	earlier.UID = "uid-of-an-earlier-pod"
	claim, pv := boundPair("web-scratch", "made")
	for name, claim := range map[string]*v1.PersistentVolumeClaim{"nobody's": claim, "of an earlier pod": controlledBy(earlier, claim)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.add(claim, pv.DeepCopy())
			manager, _ := w.start()
			volumes, err := manager.SetUpPod(t.Context(), pod)
			if !errors.Is(err, claimbinding.ErrElsewhere) || !strings.Contains(err.Error(), "rename the volume") || volumes.Volumes[0].State != volumemanager.StateFailed {
				t.Errorf("err = %v, volumes %+v", err, volumes.Volumes)
			}
			w.untouched()
		})
	}
}
