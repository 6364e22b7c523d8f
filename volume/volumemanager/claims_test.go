package volumemanager_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager"
)

func TestReadOnlyClaim(t *testing.T) {
	tests := map[string]struct {
		volumes  []v1.Volume
		readOnly bool
	}{
		"read-only":              {[]v1.Volume{claimVolume("a", "nfs-211", true)}, true},
		"read-only by both":      {[]v1.Volume{claimVolume("a", "nfs-211", true), claimVolume("b", "nfs-211", true)}, true},
		"one of two writes":      {[]v1.Volume{claimVolume("a", "nfs-211", true), claimVolume("b", "nfs-211", false)}, false},
		"writable":               {[]v1.Volume{claimVolume("a", "nfs-211", false)}, false},
		"beside another's claim": {[]v1.Volume{claimVolume("a", "nfs-211", true), emptyDirVolume("b", "")}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			claim, pv := boundPair("nfs-211", "nfs211")
			w.add(claim, pv)
			manager, _ := w.start()
			volumes, err := manager.SetUpPod(t.Context(), newPod("web", tc.volumes...))
			if err != nil {
				t.Fatal(err)
			}
			path, _ := volumes.Path("a")
			entry, mounted, err := w.fake.Table().At(path)
			if err != nil || !mounted || entry.ReadOnly() != tc.readOnly {
				t.Errorf("entry = %+v, %v, %v; want mounted, read-only %v", entry, mounted, err, tc.readOnly)
			}
			for _, v := range tc.volumes {
				if _, ok := volumes.Path(v.Name); !ok {
					t.Errorf("volume %s is not mounted", v.Name)
				}
			}
			before, err := os.ReadFile(w.recordsPath())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := manager.SetUpPod(t.Context(), newPod("web", tc.volumes...)); err != nil {
				t.Fatal(err)
			}
			if after, err := os.ReadFile(w.recordsPath()); err != nil || !bytes.Equal(before, after) {
				t.Errorf("a second set-up writes records, %v", err)
			}
			if err := manager.TearDownPod(t.Context(), "uid-web"); err != nil {
				t.Fatal(err)
			}
			w.assertClean()
		})
	}
}

func TestClaimsThatCannotBeUsed(t *testing.T) {
	block := v1.PersistentVolumeBlock
	tests := map[string]struct {
		change func(*v1.PersistentVolumeClaim, *v1.PersistentVolume)
		is     error
		says   string
	}{
		"not bound": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Spec.VolumeName = "" },
			claimbinding.ErrUnbound, "ops-test/nfs-211"},
		"no such claim": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Name = "other" },
			volume.ErrNotFound, "PersistentVolumeClaim ops-test/nfs-211"},
		"no such volume": {func(c *v1.PersistentVolumeClaim, _ *v1.PersistentVolume) { c.Spec.VolumeName = "gone" },
			volume.ErrNotFound, "PersistentVolume gone"},
		"bound elsewhere": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Spec.ClaimRef.Name = "rival" },
			nil, "rival"},
		"bound to an earlier claim of that name": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Spec.ClaimRef.UID = "old" },
			nil, "nfs211"},
		"block mode": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Spec.VolumeMode = &block },
			nil, "volumeMode Block"},
		"mount options": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			onHost(pv)
			pv.Spec.MountOptions = []string{"noexec"}
		}, nil, "spec.mountOptions: volumes of kubernetes.io/host-path take no mount options"},
		"mount options as an annotation": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) {
			onHost(pv)
			pv.Annotations = map[string]string{v1.MountOptionAnnotation: "noexec"}
		}, nil, "annotation volume.beta.kubernetes.io/mount-options: volumes of kubernetes.io/host-path take no mount options"},
		"another node's": {func(_ *v1.PersistentVolumeClaim, pv *v1.PersistentVolume) { pv.Spec.NodeAffinity = affinity("node2") },
			nil, "does not allow node node1"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			claim, pv := boundPair("nfs-211", "nfs211")
			tc.change(claim, pv)
			w.add(claim, pv)
			manager, _ := w.start()
			volumes, err := manager.SetUpPod(t.Context(), newPod("web", claimVolume("vol1", "nfs-211", false)))
			if err == nil || (tc.is != nil && !errors.Is(err, tc.is)) || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("err = %v, want one that says %q", err, tc.says)
			}
			state := volumemanager.StateFailed
			if errors.Is(tc.is, claimbinding.ErrUnbound) {
				state = volumemanager.StatePending
			}
			if volumes.Volumes[0].State != state || !strings.Contains(err.Error(), "ops-test/web") {
				t.Errorf("state %s, err %v; want %s, and the pod named", volumes.Volumes[0].State, err, state)
			}
			w.untouched()
		})
	}
}

func onHost(pv *v1.PersistentVolume) {
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/srv"}}
}

func affinity(node string) *v1.VolumeNodeAffinity {
	return &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
		MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
	}}}}
}

func TestAffinityUsesTheNodesLabels(t *testing.T) {
	w := newWorld(t)
	claim, pv := boundPair("nfs-211", "nfs211")
	pv.Spec.NodeAffinity = affinity("rack-7")
	w.add(claim, pv, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", Labels: map[string]string{v1.LabelHostname: "rack-7"}}})
	manager, _ := w.start()
	if _, err := manager.SetUpPod(t.Context(), newPod("web", claimVolume("vol1", "nfs-211", false))); err != nil {
		t.Fatal(err)
	}
}

// A PersistentVolume and an inline volume of one name would be one directory.
func TestNamesakes(t *testing.T) {
	for range 10 {
		w := newWorld(t)
		claim, pv := boundPair("nfs-211", "nfs211")
		w.add(claim, pv)
		manager, stop := w.start()
		volumes, err := manager.SetUpPod(t.Context(), newPod("web", claimVolume("data", "nfs-211", false), nfsVolume("nfs211", "10.0.0.1")))
		if err == nil || !strings.Contains(err.Error(), "rename the volume") {
			t.Fatalf("err = %v", err)
		}
		if volumes.Volumes[0].State != volumemanager.StateFailed || volumes.Volumes[1].State != volumemanager.StateMounted {
			t.Fatalf("rows %+v", volumes.Volumes)
		}
		volumes, err = manager.SetUpPod(t.Context(), newPod("other", claimVolume("data", "nfs-211", false), emptyDirVolume("nfs211", "")))
		if err != nil {
			t.Fatalf("other plugins have other directories: %v, %+v", err, volumes)
		}
		stop()
	}
}

// countingSource counts the objects that are read.
type countingSource struct {
	objects.Source
	reads atomic.Int32
}

func (s *countingSource) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	s.reads.Add(1)
	return s.Source.Get(ctx, ref)
}

// A claim that nobody has bound yet is waited for, which is no failure.
func TestAClaimThatIsBeingBoundIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		claim, pv := boundPair("nfs-211", "nfs211")
		bound := claim.DeepCopy()
		claim.Spec.VolumeName, claim.Status.Phase = "", v1.ClaimPending
		w.add(claim, pv)
		source := &countingSource{Source: w.store}
		config := w.config()
		config.Objects = source
		manager, err := volumemanager.New(config)
		if err != nil {
			t.Fatal(err)
		}
		w.run(manager)
		var states []volumemanager.VolumeState
		stop := manager.Subscribe(func(v volumemanager.VolumeStatus) { states = append(states, v.State) })
		pod := newPod("web", claimVolume("vol1", "nfs-211", false))
		if err := manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		reads := source.reads.Load()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := manager.WaitForMounted(ctx, pod.UID); err == nil || !strings.Contains(err.Error(), "while waiting for claim ops-test/nfs-211 to be bound") {
			t.Errorf("WaitForMounted: %v", err)
		}
		if row := statusOf(t, manager, "web"); row.State != volumemanager.StatePending || !errors.Is(row.Err, claimbinding.ErrUnbound) || !row.NextRetry.IsZero() {
			t.Errorf("Explain = %+v", row)
		}
		if n := source.reads.Load() - reads; n > 0 {
			t.Errorf("%d reads of objects that do not change", n)
		}
		bound.Status.Phase = v1.ClaimBound
		if _, err := w.store.Update(t.Context(), bound); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.UpdateStatus(t.Context(), bound); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil || time.Since(start) > 0 {
			t.Errorf("mounted after %v: %v", time.Since(start), err)
		}
		stop()
		if slices.Contains(states, volumemanager.StateFailed) {
			t.Errorf("states %v", states)
		}
		if events := w.events.all(); len(events) > 0 {
			t.Errorf("events %q", events)
		}
		if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
		w.assertClean()
	})
}
