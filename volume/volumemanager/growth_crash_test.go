package volumemanager_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/fault"
)

// The process dies before or after any step, or the step just fails; either way the volume
// grows and the claim is told, and nothing is grown that was known to be.
func TestCrashAroundGrowth(t *testing.T) {
	died := errors.New("the process died")
	for _, online := range []bool{false, true} {
		for _, step := range []string{"MountDevice", "NodeExpand", "SetUp", "report"} {
			for _, after := range []bool{false, true} {
				for _, crash := range []bool{false, true} {
					name := fmt.Sprintf("%s after=%v online=%v crash=%v", step, after, online, crash)
					t.Run(name, in(func(t *testing.T) { crashAroundGrowth(t, died, step, online, after, crash) }))
				}
			}
		}
	}
}

func crashAroundGrowth(t *testing.T, died error, step string, online, after, crash bool) {
	g := newGrowthWorld(t, v1.ReadWriteOnce)
	manager, stop := g.start()
	pod := growthPod("one")
	if online {
		mustSetUp(t, manager, pod)
	}
	var mu sync.Mutex
	dead := false
	isDead := func() bool { mu.Lock(); defer mu.Unlock(); return dead }
	die := func() { mu.Lock(); defer mu.Unlock(); dead = true }
	revive := g.disk.calls.Inject(
		fault.Fault[diskCall]{Match: func(diskCall) bool { return isDead() }, Err: died},
		fault.Fault[diskCall]{Match: isDiskCall(step), After: after, Err: died, Hook: die},
	)
	tell := g.resizes.calls.Inject(
		fault.Fault[string]{Match: func(string) bool { return isDead() }, Err: died},
		fault.Fault[string]{Match: func(string) bool { return step == "report" }, After: after, Err: died, Hook: die},
	)
	g.disk.calls.ResetCalls()
	g.enlarge("2Gi", pending)
	_, _ = manager.SetUpPod(t.Context(), pod)
	synctest.Wait()
	revive()
	tell()
	if crash {
		stop()
		manager, _ = g.start()
	}
	mustSetUp(t, manager, pod)
	time.Sleep(time.Minute) // the longest pause that may have been reached
	synctest.Wait()
	g.has("2Gi", "")
	want := int32(1)
	if step == "NodeExpand" && after {
		want = 2 // nobody knew that it had
	}
	if n := g.disk.grown.Load(); n != want {
		t.Errorf("grown %d times, want %d", n, want)
	}
	mustTearDown(t, manager, pod)
	g.assertNoDevices()
}
