package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// A pod that writes more into its volume than it may fails as with the kubelet, and its volume goes.
// Another one goes on.
func TestPodThatTakesTooMuchIsEvicted(t *testing.T) {
	w := newFakeWorld(t)
	w.config.measureEvery = 10 * time.Millisecond
	w.start()
	scratch := v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: new(resource.MustParse("1Mi"))}}}
	greedy, modest := pod("greedy", "sleep 1000", scratch), pod("modest", "sleep 1000", scratch)
	w.create(greedy, modest)
	w.phase(greedy, v1.PodRunning)
	w.phase(modest, v1.PodRunning)
	dir := func(p *v1.Pod) string { return filepath.Join(w.podDir(p), "volumes/kubernetes.io~empty-dir/scratch") }
	for p, size := range map[*v1.Pod]int{greedy: 2 << 20, modest: 1 << 19} {
		if err := os.WriteFile(filepath.Join(dir(p), "file"), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.phase(greedy, v1.PodFailed)
	if s := w.get(greedy).Status; s.Reason != "Evicted" || s.Message != `Usage of EmptyDir volume "scratch" exceeds the limit "1Mi".` ||
		condition(w.get(greedy), v1.DisruptionTarget).Status != v1.ConditionTrue {
		t.Errorf("%s: %s, %v", s.Reason, s.Message, s.Conditions)
	}
	w.eventually("the pod is told", func() bool { return w.event(greedy, "Evicted", "scratch") })
	w.eventually("its volume goes", func() bool {
		_, err := os.Lstat(dir(greedy))
		return errors.Is(err, os.ErrNotExist)
	})
	if s := w.get(modest).Status; s.Phase != v1.PodRunning || strings.Contains(s.Message, "exceeds") {
		t.Errorf("the other pod is %s: %s", s.Phase, s.Message)
	}
}
