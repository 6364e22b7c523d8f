package volumemanager_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/podvol/podvol/mount/fakemount"
)

// A tear-down returns once an attempt at one volume has failed, also beside a volume of
// which there was nothing to tear down.
func TestTearDownReturnsBesideAVolumeThatNeverWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		manager, stop := w.start()
		defer stop()
		pod := newPod("web", claimVolume("late", "unknown", false), nfsVolume("share", answering))
		if _, err := manager.SetUpPod(t.Context(), pod); err == nil {
			t.Fatal("a claim that does not exist was set up")
		}
		remove := w.fake.Inject(fakemount.Fault{Match: isUnmount, Err: errors.New("refused")})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := manager.TearDownPod(ctx, pod.UID); err == nil || ctx.Err() != nil {
			t.Errorf("the failed attempt was not reported: %v", err)
		}
		remove()
		if err := manager.WaitForUnmounted(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
	})
}
