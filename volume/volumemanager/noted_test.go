package volumemanager_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/volumemanager"
)

// A volume that is mounted, which could not be noted, is not called mounted: the
// next process would take it for one that was never finished.
func TestWhatCannotBeNotedIsNotCalledMounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		w.fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool {
			if isMount(c) {
				must(t, manager.CloseRecords()) // nothing is noted from now on
			}
			return false
		}})
		short, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		pod := newPod("web", nfsVolume("v", "10.0.0.1"))
		volumes, err := manager.SetUpPod(short, pod)
		if err == nil || !strings.Contains(err.Error(), "could not be noted") {
			t.Errorf("SetUpPod: %v", err)
		}
		for _, row := range append(volumes.Volumes, manager.Explain()...) {
			if row.State == volumemanager.StateMounted || row.Err == nil {
				t.Errorf("the row says %s: %v", row.State, row.Err)
			}
		}
		stop()

		manager, stop = w.start()
		defer stop()
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Error(err)
		}
		must(t, manager.TearDownPod(t.Context(), pod.UID))
		w.assertClean()
	})
}
