package volumemanager_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/mount/fakemount"
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

// What changes while an attempt is under way, which then fails, is a reason to
// try again without a pause.
func TestAttemptOvertakenByAChangeIsRepeatedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		release := make(chan struct{})
		w.fake.Inject(fakemount.Fault{Match: isMount, Nth: 1, Release: release, Err: errors.New("refused")})
		pod := newPod("web", nfsVolume("v", answering))
		if err := manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		pod.Labels = map[string]string{"changed": "meanwhile"}
		if err := manager.PutPod(pod); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		close(release)
		if err := manager.WaitForMounted(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 0 {
			t.Errorf("mounted after %v", took)
		}
		mustTearDown(t, manager, pod)
		w.assertClean()
	})
}
