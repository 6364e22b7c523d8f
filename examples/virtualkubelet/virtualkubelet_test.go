package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/volumemanager"
)

// A pod's life in the cluster: created, updated, its config map updated, deleted.
func TestPodsLife(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	web := pod("web", "", configVolume("config"), labelsVolume("about"), memoryVolume("memory"))
	stranger := pod("stranger", "", memoryVolume("memory"))
	stranger.Spec.NodeName = "node2"
	w.create(configMap("config", "colour", "blue"), web, stranger)
	w.start()
	w.phase(web, v1.PodRunning)
	got := w.get(web)
	for _, c := range []v1.PodConditionType{v1.PodReadyToStartContainers, v1.PodInitialized, v1.ContainersReady, v1.PodReady} {
		if condition(got, c).Status != v1.ConditionTrue {
			t.Errorf("condition %s is %v", c, condition(got, c))
		}
	}
	if s := got.Status; s.PodIP != "192.0.2.1" || len(s.ContainerStatuses) != 1 || s.ContainerStatuses[0].State.Running == nil || s.StartTime == nil {
		t.Errorf("status: %s", s.String())
	}
	if c := w.file(web, "configmap", "config/colour"); c != "blue" {
		t.Errorf("the volume has %q", c)
	}

	changed := got.DeepCopy()
	changed.Labels["tier"] = "front"
	if _, err := w.api.CoreV1().Pods("shop").Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("the new label is in the file", func() bool { return strings.Contains(w.file(web, "downward-api", "about/labels"), `tier="front"`) })
	if _, err := w.api.CoreV1().ConfigMaps("shop").Update(t.Context(), configMap("config", "colour", "red"), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually("the config map's new value is in the file", func() bool { return w.file(web, "configmap", "config/colour") == "red" })

	w.delete(web)
	w.gone(web)
	if m := w.mounted(); len(m) > 0 || w.get(stranger) == nil || w.get(stranger).Status.Phase != "" {
		t.Errorf("mounted: %v; the other node's pod: %v", m, w.get(stranger))
	}
	w.api.mu.Lock()
	defer w.api.mu.Unlock()
	if count := countOf(w.api.watched, "pods "); count != 1 {
		t.Errorf("pods are watched %d times: %v", count, w.api.watched)
	}
	for _, watched := range w.api.watched {
		if !strings.HasPrefix(watched, "pods spec.nodeName=") && !strings.Contains(watched, " metadata.name=") {
			t.Errorf("more than single objects is watched: %s", watched)
		}
	}
}

func countOf(list []string, prefix string) int {
	return len(slices.DeleteFunc(slices.Clone(list), func(s string) bool { return !strings.HasPrefix(s, prefix) }))
}

// A volume that cannot be mounted says so where users look, and is mounted when
// what it lacks appears.
func TestUsersReadWhyAVolumeFails(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	web := pod("web", "", configVolume("late"))
	w.create(web)
	w.start()
	w.eventually("the status says why", func() bool {
		p := w.get(web)
		return strings.Contains(condition(p, v1.PodReadyToStartContainers).Message, "ConfigMap shop/late not found")
	})
	got := w.get(web)
	if s := got.Status; s.Phase != v1.PodPending || s.ContainerStatuses[0].State.Waiting == nil || s.ContainerStatuses[0].State.Waiting.Reason != "ContainerCreating" ||
		!strings.Contains(s.ContainerStatuses[0].State.Waiting.Message, "ConfigMap shop/late not found") {
		t.Errorf("status: %s", s.String())
	}
	w.eventually("an event says why", func() bool { return w.event(web, "FailedMount", "ConfigMap shop/late not found") })
	w.create(configMap("late", "key", "value"))
	w.phase(web, v1.PodRunning)
	if c := condition(w.get(web), v1.PodReadyToStartContainers); c.Status != v1.ConditionTrue || c.Message != "" {
		t.Errorf("condition: %v", c)
	}
}

// A pod that is deleted while it waits for its volumes leaves nothing.
func TestDeletedWhileItsVolumesAreMissing(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	web := pod("web", "", configVolume("never"), memoryVolume("memory"))
	w.create(web)
	w.start()
	w.eventually("the other volume is mounted", func() bool { return len(w.mounted()) == 1 })
	w.delete(web)
	w.gone(web)
	if m := w.mounted(); len(m) > 0 {
		t.Errorf("mounted: %v", m)
	}
}

// What is invalid is refused, and says so.
func TestInvalidPod(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	web := pod("web", "", memoryVolume("memory"))
	web.Spec.Volumes[0].EmptyDir.Medium = "Paper"
	w.create(web)
	w.start()
	w.phase(web, v1.PodFailed)
	if s := w.get(web).Status; s.Reason != "ProviderFailed" || !strings.Contains(s.Message, "Paper") {
		t.Errorf("status: %s", s.String())
	}
}

// After a restart, pods that still are keep their volumes, those that were
// deleted meanwhile lose them, and nothing is unmounted before that is known.
func TestRestart(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	stays, goes := pod("stays", "", memoryVolume("memory")), pod("goes", "", memoryVolume("memory"))
	w.create(stays, goes)
	w.start()
	w.phase(stays, v1.PodRunning)
	w.phase(goes, v1.PodRunning)
	before := w.get(stays).Status
	w.stop()
	if m := w.mounted(); len(m) != 2 {
		t.Fatalf("mounted while the node is down: %v", m)
	}
	w.api.setDown(true)
	if err := w.api.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), "shop", "goes"); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(w.config.dir, "volumes/podvol/lock"), 0); err != nil { // whose first owner is named in it still
		t.Fatal(err)
	}
	w.start()
	w.eventually("the manager owns its directory", func() bool { return w.file0("volumes/podvol/lock") != "" })
	if m := w.mounted(); len(m) != 2 {
		t.Fatalf("mounted while the API server is away: %v", m)
	}
	w.api.setDown(false)
	w.eventually("the volumes of the deleted pod are gone", func() bool { return len(w.mounted()) == 1 })
	w.phase(stays, v1.PodRunning)
	if s := w.get(stays).Status.ContainerStatuses[0]; s.RestartCount != 0 || !s.State.Running.StartedAt.Equal(&before.ContainerStatuses[0].State.Running.StartedAt) {
		t.Errorf("held over the restart: %v", s.String())
	}
	w.delete(stays)
	w.gone(stays)
}

// While the API server is away nothing is unmounted. A pod that was deleted
// meanwhile, and one that another of the same name and content has replaced, are
// noticed afterwards, which virtual-kubelet does not do by itself.
func TestOutage(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	pods := []*v1.Pod{pod("stays", "", memoryVolume("memory")), pod("goes", "", memoryVolume("memory")), pod("again", "", memoryVolume("memory"))}
	for _, p := range pods {
		w.create(p)
	}
	w.start()
	for _, p := range pods {
		w.phase(p, v1.PodRunning)
	}
	w.api.setDown(true)
	resource := v1.SchemeGroupVersion.WithResource("pods")
	for _, p := range pods[1:] {
		if err := w.api.Tracker().Delete(resource, "shop", p.Name); err != nil {
			t.Fatal(err)
		}
	}
	again := pods[2].DeepCopy()
	again.UID = "uid-again-2"
	if err := w.api.Tracker().Add(again); err != nil {
		t.Fatal(err)
	}
	w.eventually("pods were asked for in vain", func() bool {
		w.api.mu.Lock()
		defer w.api.mu.Unlock()
		return w.api.inVain["list pods"] > 0
	})
	if m := w.mounted(); len(m) != 3 {
		t.Errorf("mounted during the outage: %v", m)
	}
	w.api.setDown(false)
	w.eventually("the old pods' volumes are gone, and the new one's mounted", func() bool {
		m := w.mounted()
		return len(m) == 2 && strings.Contains(strings.Join(m, " "), "uid-again-2/") && strings.Contains(strings.Join(m, " "), "uid-stays/")
	})
	w.phase(again, v1.PodRunning)
}

// A second agent in the directory of another one says so, and ends.
func TestDirectoryIsAnothers(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	web := pod("web", "", memoryVolume("memory"))
	w.create(web)
	w.start()
	w.phase(web, v1.PodRunning)
	err := run(t.Context(), w.config)
	if !errors.Is(err, volumemanager.ErrRootBusy) || !errors.Is(err, volumemanager.ErrStopped) {
		t.Errorf("the second agent: %v", err)
	}
	if m := w.mounted(); len(m) != 1 {
		t.Errorf("mounted: %v", m)
	}
}

// The node registers itself, and its lease.
func TestNode(t *testing.T) {
	t.Parallel()
	w := newFakeWorld(t)
	w.start()
	w.eventually("the node is ready", func() bool {
		node, err := w.api.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
		return err == nil && len(node.Status.Conditions) > 0 && node.Status.Conditions[0].Status == v1.ConditionTrue && len(node.Spec.Taints) == 1
	})
	w.eventually("its lease is there", func() bool {
		lease, err := w.api.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(t.Context(), "node1", metav1.GetOptions{})
		return err == nil && lease.Spec.RenewTime != nil
	})
}
