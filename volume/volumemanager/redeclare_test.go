package volumemanager_test

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A pod may be declared with other volumes at any time, also between the moment
// that a set-up is decided on and its first step.
func TestPodIsDeclaredWithOtherVolumesAllTheTime(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	pod := func(i int) *v1.Pod { return newPod("web", emptyDirVolume(fmt.Sprintf("v%d", i), "")) }
	const rounds = 4000
	for i := range rounds {
		if err := manager.PutPod(pod(i % 8)); err != nil {
			t.Fatal(err)
		}
		if i%16 == 0 {
			mustSetUp(t, manager, pod(i%7))
		}
	}
	mustSetUp(t, manager, pod(3))
	mustTearDown(t, manager, pod(3))
	w.assertClean()
}
