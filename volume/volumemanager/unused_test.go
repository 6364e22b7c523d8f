package volumemanager_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// idle returns a pod whose only container mounts none of the volumes.
func idle(name string, volumes ...v1.Volume) *v1.Pod { return mounting(newPod(name, volumes...)) }

// debugged returns the pod with an ephemeral container that mounts the volume.
func debugged(pod *v1.Pod, volumeName string) *v1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, v1.EphemeralContainer{EphemeralContainerCommon: v1.EphemeralContainerCommon{
		Name: "debug-" + volumeName, VolumeMounts: []v1.VolumeMount{{Name: volumeName, MountPath: "/debug"}}}})
	return pod
}

func statesOf(rows []volumemanager.VolumeStatus) map[string]volumemanager.VolumeState {
	states := make(map[string]volumemanager.VolumeState)
	for _, row := range rows {
		states[row.Volume] = row.State
	}
	return states
}

// needy are volumes that cannot be set up here, each for another reason.
func needy() []v1.Volume {
	return []v1.Volume{
		{Name: "secret", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "gone"}}},
		configMapVolume("settings", "gone"),
		claimVolume("claim", "gone", false),
		ephemeralVolume("scratch"),
		nfsVolume("share", "10.0.0.1"),
		{Name: "disk", VolumeSource: v1.VolumeSource{GCEPersistentDisk: diskSource(netDisk)}},
		{Name: "clone", VolumeSource: v1.VolumeSource{GitRepo: &v1.GitRepoVolumeSource{Repository: "https://example.com/r.git"}}},
		hostPathVolume("host", "/nonexistent/file"),
	}
}

// Volumes that no container uses, whatever they lack, are not mounted, not looked
// up and not reported in use, and hold nothing up. A container that comes later has
// its volume mounted, or told why not.
func TestVolumesThatNoContainerUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.withAttachableDisks()
		refuse := w.fake.Inject(fakemount.Fault{Match: isMount, Err: errors.New("no answer")})
		manager, stop := w.start()
		defer stop()
		pod := withVolumes(idle("web", needy()...), emptyDirVolume("used", ""))
		volumes, err := manager.SetUpPod(t.Context(), pod)
		must(t, err)
		must(t, manager.WaitForMounted(t.Context(), pod.UID))
		for _, rows := range [][]volumemanager.VolumeStatus{volumes.Volumes, manager.Explain(), manager.ExplainPod(pod.UID)} {
			if len(rows) != len(pod.Spec.Volumes) {
				t.Errorf("%d rows of %d volumes", len(rows), len(pod.Spec.Volumes))
			}
			for _, row := range rows {
				want := volumemanager.StateUnused
				if row.Volume == "used" {
					want = volumemanager.StateMounted
				}
				if row.State != want || row.Err != nil || !row.Wanted || row.Attachment != nil || want == volumemanager.StateUnused && row.Path != "" {
					t.Errorf("row %+v; want it %s", row, want)
				}
			}
		}
		if inUse, events := manager.VolumesInUse(), w.events.all(); len(inUse) > 0 || len(events) > 0 {
			t.Errorf("in use %v, events %v", inUse, events)
		}
		// Nothing of it is watched, and nothing tried again.
		w.add(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ops-test", Name: "gone"}, Data: map[string][]byte{"k": []byte("v")}})
		synctest.Wait()
		if row := statesOf(manager.Explain()); row["secret"] != volumemanager.StateUnused {
			t.Errorf("once its secret is there: %v", row)
		}
		// An ephemeral container uses two of them.
		refuse()
		pod = debugged(debugged(pod, "secret"), "share")
		must(t, manager.PutPod(pod))
		must(t, manager.WaitForMounted(t.Context(), pod.UID))
		states := statesOf(manager.Explain())
		if states["secret"] != volumemanager.StateMounted || states["share"] != volumemanager.StateMounted || states["settings"] != volumemanager.StateUnused {
			t.Errorf("with ephemeral containers: %v", states)
		}
		if _, err := manager.SetUpPod(t.Context(), debugged(pod, "settings")); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("used, and its config map is missing: %v", err)
		}
		mustTearDown(t, manager, pod)
		if rows := manager.Explain(); len(rows) > 0 {
			t.Errorf("left: %+v", rows)
		}
		w.assertClean()
	})
}

// Each way of using a volume has it mounted.
func TestEachUseMountsTheVolume(t *testing.T) {
	asMount := v1.Container{Name: "other", VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v"}}}
	asDevice := v1.Container{Name: "other", VolumeDevices: []v1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}}
	ephemeral := func(c v1.Container) []v1.EphemeralContainer {
		return []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon(c)}}
	}
	for name, tc := range map[string]struct {
		claim string
		use   func(*v1.PodSpec)
		want  volumemanager.VolumeState
	}{
		"none":                    {"files", func(*v1.PodSpec) {}, volumemanager.StateUnused},
		"no containers":           {"files", func(s *v1.PodSpec) { s.Containers = nil }, volumemanager.StateMounted},
		"container":               {"files", func(s *v1.PodSpec) { s.Containers = append(s.Containers, asMount) }, volumemanager.StateMounted},
		"init container":          {"files", func(s *v1.PodSpec) { s.InitContainers = []v1.Container{asMount} }, volumemanager.StateMounted},
		"ephemeral container":     {"files", func(s *v1.PodSpec) { s.EphemeralContainers = ephemeral(asMount) }, volumemanager.StateMounted},
		"device, none":            {"a", func(*v1.PodSpec) {}, volumemanager.StateUnused},
		"device of a container":   {"a", func(s *v1.PodSpec) { s.Containers = append(s.Containers, asDevice) }, volumemanager.StateMounted},
		"device of an init one":   {"a", func(s *v1.PodSpec) { s.InitContainers = []v1.Container{asDevice} }, volumemanager.StateMounted},
		"its claim, another name": {"files", func(s *v1.PodSpec) { s.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "again", MountPath: "/v"}} }, volumemanager.StateMounted},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			d, h := w.withBlockDisks()
			claim, pv := boundPair("files", "pv-files")
			w.add(claim, pv) // "a" is there
			manager, stop := w.start()
			defer stop()
			pod := idle("web", claimVolume("v", tc.claim, false), claimVolume("again", tc.claim, false))
			tc.use(&pod.Spec)
			volumes, err := manager.SetUpPod(t.Context(), pod)
			must(t, err)
			if got := volumes.Volumes[0].State; got != tc.want {
				t.Errorf("it is %s", got)
			}
			mustTearDown(t, manager, pod)
			w.assertNoBlocks(d, h)
		})
	}
}

// What is mounted stays until the pod goes, also over a restart; what waits or has
// failed is given up, and nobody waits for it.
func TestVolumeThatNoContainerUsesAnyMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		pod := newPod("web", nfsVolume("share", "10.0.0.1"), configMapVolume("settings", "gone"), claimVolume("claim", "gone", false))
		if _, err := manager.SetUpPod(t.Context(), pod); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("used: %v", err)
		}
		waited := make(chan error, 1)
		go func() { waited <- manager.WaitForMounted(t.Context(), pod.UID) }()
		synctest.Wait()
		unused := mounting(pod.DeepCopy())
		must(t, manager.PutPod(unused))
		must(t, <-waited)
		for range 2 {
			volumes, err := manager.SetUpPod(t.Context(), unused)
			must(t, err)
			states := statesOf(volumes.Volumes)
			if states["share"] != volumemanager.StateMounted || states["settings"] != volumemanager.StateUnused || states["claim"] != volumemanager.StateUnused {
				t.Errorf("states %v", states)
			}
			if rows := manager.Explain(); slices.ContainsFunc(rows, func(r volumemanager.VolumeStatus) bool { return !r.Wanted || r.Err != nil || !r.NextRetry.IsZero() }) {
				t.Errorf("rows %+v", rows)
			}
			stop()
			manager, stop = w.start()
		}
		defer stop()
		must(t, manager.PutPod(unused))
		mustTearDown(t, manager, pod)
		w.assertClean()
	})
}

// Of a volume that leaves the pod unused, no row stays.
func TestUnusedVolumeLeavesThePod(t *testing.T) {
	w := newWorld(t)
	manager, stop := w.start()
	defer stop()
	mustSetUp(t, manager, idle("web", configMapVolume("a", "gone"), emptyDirVolume("b", "")))
	mustSetUp(t, manager, idle("web", emptyDirVolume("b", "")))
	if states := statesOf(manager.Explain()); len(states) != 1 || states["b"] != volumemanager.StateUnused {
		t.Errorf("states %v", states)
	}
	w.untouched()
}

// An unused volume is validated all the same, before anything is touched.
func TestUnusedVolumeIsValidated(t *testing.T) {
	w := newWorld(t)
	manager, stop := w.start()
	defer stop()
	_, err := manager.SetUpPod(t.Context(), idle("web", nfsVolume("bad", "")))
	if _, invalid := errors.AsType[*volume.InvalidSpecError](err); !invalid {
		t.Errorf("err = %v", err)
	}
	w.untouched()
}
