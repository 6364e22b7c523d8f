package volumemanager_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/volumemanager"
)

// A volume that was detached while it is in use is known as such until it is
// mounted again: a set-up that fails does not forget it.
func TestDetachedVolumeIsDeclaredAgain(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				manager, stop := w.start()
				pod := newPod("hung", nfsVolume("v", silent))
				mustSetUp(t, manager, pod)
				path := statusOf(t, manager, "hung").Path
				done, err := w.fake.Use(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := manager.TearDownPod(t.Context(), pod.UID); !errors.As(err, new(*lazyunmount.Error)) {
					t.Fatalf("err = %v", err)
				}
				died := errors.New("the process died")
				remove := w.fake.Inject(
					fakemount.Fault{Match: isMount, After: true, Err: died},
					fakemount.Fault{Match: isUnmount, Err: died}, // the dead clean nothing up
				)
				if _, err := manager.SetUpPod(t.Context(), pod); !errors.Is(err, died) {
					t.Fatal(err)
				}
				if restart {
					stop()
				}
				remove()
				if restart {
					manager, stop = w.start()
				}
				if err := manager.TearDownPod(t.Context(), pod.UID); !errors.As(err, new(*lazyunmount.Error)) {
					t.Errorf("torn down, %v, while it is in use", err)
				}
				if row := statusOf(t, manager, "hung"); row.State != volumemanager.StateDetached || len(w.records()) != 1 {
					t.Errorf("status %+v, records %v", row, w.records())
				}

				mustSetUp(t, manager, pod)
				if row := statusOf(t, manager, "hung"); row.State != volumemanager.StateMounted || row.Err != nil {
					t.Errorf("mounted again: %+v", row)
				}
				stop()
				manager, stop = w.start()
				if row := statusOf(t, manager, "hung"); row.State != volumemanager.StateMounted || row.Err != nil {
					t.Errorf("mounted again, after a restart: %+v", row)
				}
				done()
				mustTearDown(t, manager, pod)
				w.assertClean()
				stop()
			})
		})
	}
}
