package volumemanager_test

import (
	"context"
	"errors"
	"os"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Every mounted volume can be measured, also one that was mounted before the
// manager began and whose pod nobody has declared since.
func TestMetrics(t *testing.T) {
	w := newWorld(t)
	claim, pv := boundPair("nfs-211", "nfs211")
	w.add(claim, pv)
	pod := newPod("p", claimVolume("data", "nfs-211", false), emptyDirVolume("scratch", v1.StorageMediumDefault),
		v1.Volume{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: t.TempDir()}}})
	manager, stop := w.start()
	if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	measure := func(manager *volumemanager.Manager) {
		t.Helper()
		for _, v := range pod.Spec.Volumes {
			metrics, err := manager.Metrics(t.Context(), pod.UID, v.Name)
			if err != nil || metrics.Capacity.Value() <= 0 {
				t.Errorf("%s: %+v, %v", v.Name, metrics, err)
			}
		}
	}
	measure(manager)
	for name, uid := range map[string]types.UID{"none": pod.UID, "data": "another"} {
		if _, err := manager.Metrics(t.Context(), uid, name); !errors.Is(err, mount.ErrNotMounted) {
			t.Errorf("%s of %s: %v", name, uid, err)
		}
	}
	stop()
	manager, _ = w.start()
	measure(manager)
	if rows := manager.Explain(); len(rows) != 3 || rows[0].Claim != (types.NamespacedName{Namespace: "ops-test", Name: "nfs-211"}) || rows[1].Claim.Name != "" {
		t.Errorf("%+v", rows)
	}
	if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	if _, err := manager.Metrics(t.Context(), pod.UID, "data"); !errors.Is(err, mount.ErrNotMounted) {
		t.Errorf("after the tear-down: %v", err)
	}
}

// Whoever measures says for how long, and which volume has failed.
func TestMetricsOfWhatCannotBeMeasured(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := newPod("p", nfsVolume("share", "10.0.0.1"))
	volumes, err := manager.SetUpPod(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = manager.Metrics(ended, pod.UID, "share")
	if own, ok := errors.AsType[*volume.Error](err); !ok || !errors.Is(err, context.Canceled) || own.Volume != "share" || own.PodUID != pod.UID {
		t.Errorf("with a context that has ended: %v", err)
	}
	if err := w.fake.Unmount(volumes.Volumes[0].Path); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(volumes.Volumes[0].Path)
	if _, err := manager.Metrics(t.Context(), pod.UID, "share"); !errors.Is(err, mount.ErrNotMounted) {
		t.Errorf("of what is not mounted any more: %v", err)
	}
}
