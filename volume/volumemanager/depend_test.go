package volumemanager_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// An object that was missing and appears is worth a try at once.
func TestMissingObjectAppears(t *testing.T) {
	claim, pv := boundPair("nfs-211", "nfs211")
	settings := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"a": "1"}}
	for name, tc := range map[string]struct {
		volume  v1.Volume
		missing []metav1.Object
	}{
		"config map":        {configMapVolume("v", "settings"), []metav1.Object{settings}},
		"claim, then PV":    {claimVolume("v", "nfs-211", false), []metav1.Object{claim, pv}},
		"PV, then claim":    {claimVolume("v", "nfs-211", false), []metav1.Object{pv, claim}},
		"another namespace": {configMapVolume("v", "settings"), []metav1.Object{&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "settings"}}, settings}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				manager, stop := w.start()
				defer stop()
				if err := manager.PutPod(newPod("web", tc.volume)); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				start := time.Now()
				for _, o := range tc.missing {
					synctest.Wait()
					if row := manager.Explain()[0]; row.State != volumemanager.StateFailed || !errors.Is(row.Err, volume.ErrNotFound) {
						t.Errorf("row = %+v", row)
					}
					w.add(o)
				}
				if err := manager.WaitForMounted(t.Context(), "uid-web"); err != nil || time.Since(start) != 0 {
					t.Errorf("%v after %v", err, time.Since(start))
				}
			})
		})
	}
}

// Which bundles a signer has is not known beforehand: all are watched.
func TestBundlesOfASignerReachTheirVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		pod := newPod("web", v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ClusterTrustBundle: &v1.ClusterTrustBundleProjection{Path: "ca.pem", SignerName: new("example.com/s"), LabelSelector: &metav1.LabelSelector{}, Optional: new(true)}}}}}})
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"one\n", "one\ntwo\n"} {
			bundle := kubeapi.NewTrustBundle()
			if err := json.Unmarshal(fmt.Appendf(nil, `{"metadata": {"name": "b%d"}, "spec": {"signerName": "example.com/s", "trustBundle": %q}}`, i, []string{"one\n", "two\n"}[i]), bundle); err != nil {
				t.Fatal(err)
			}
			w.add(bundle)
			synctest.Wait()
			if got := w.file("web", "projected", "v", "ca.pem"); got != want {
				t.Errorf("after bundle %d: %q", i, got)
			}
		}
		if err := w.store.Delete(t.Context(), volume.NewObjectRef("ClusterTrustBundle", "", "b0"), noPreconditions()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := w.file("web", "projected", "v", "ca.pem"); got != "two\n" {
			t.Errorf("after a deletion: %q", got)
		}
		mustTearDown(t, manager, pod)
	})
}

func configMapVolume(name, configMap string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
		ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: configMap}}}}
}

func (w *world) file(pod, plugin, volumeName, name string) string {
	w.t.Helper()
	data, err := os.ReadFile(filepath.Join(w.root, "pods/uid-"+pod+"/volumes/kubernetes.io~"+plugin, volumeName, name))
	if err != nil {
		w.t.Error(err)
	}
	return string(data)
}

func TestChangedObjectsReachTheirVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.add(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"a": "1"}},
			&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "key"}, Data: map[string][]byte{"k": []byte("old")}})
		manager, stop := w.start()
		defer stop()
		pod := newPod("web", configMapVolume("c", "settings"),
			v1.Volume{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "key"}}},
			v1.Volume{Name: "d", VolumeSource: v1.VolumeSource{DownwardAPI: &v1.DownwardAPIVolumeSource{Items: []v1.DownwardAPIVolumeFile{
				{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}}})
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		published, err := os.Readlink(filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~configmap/c/..data"))
		if err != nil {
			t.Fatal(err)
		}
		update := func(o metav1.Object) {
			t.Helper()
			if _, err := w.store.Update(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		update(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "key"}, Data: map[string][]byte{"k": []byte("new")}})
		if got := w.file("web", "secret", "s", "k"); got != "new" {
			t.Errorf("the secret volume shows %q", got)
		}
		// A change that changes no content writes nothing.
		update(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings", Labels: map[string]string{"l": "2"}}, Data: map[string]string{"a": "1"}})
		if now, err := os.Readlink(filepath.Join(w.root, "pods/uid-web/volumes/kubernetes.io~configmap/c/..data")); err != nil || now != published {
			t.Errorf("unchanged content was published again: %s, %s, %v", published, now, err)
		}
		update(&v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "settings"}, Data: map[string]string{"a": "2"}})
		if got := w.file("web", "configmap", "c", "a"); got != "2" {
			t.Errorf("the configMap volume shows %q", got)
		}
		labelled := pod.DeepCopy()
		labelled.Labels = map[string]string{"tier": "front"}
		if err := manager.PutPod(labelled); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := w.file("web", "downward-api", "d", "labels"); got != `tier="front"` {
			t.Errorf("the downwardAPI volume shows %q", got)
		}
		// The same pod again is no reason to do anything.
		statuses := 0
		defer manager.Subscribe(func(volumemanager.VolumeStatus) { statuses++ })()
		if err := manager.PutPod(labelled); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if statuses != 0 {
			t.Errorf("%d statuses of a node where nothing changes", statuses)
		}
	})
}
