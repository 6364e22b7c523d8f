package volumemanager_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/volumemanager"
)

// A ReadWriteOncePod volume is one pod's at a time: the next gets it as soon as
// that one's is gone, also if it was mounted before a restart.
func TestReadWriteOncePodIsForOnePod(t *testing.T) {
	for _, restart := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorldIn(t, t.TempDir())
			claim, pv := boundPair("once", "pv-once")
			claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
			pv.Spec.AccessModes = claim.Spec.AccessModes
			w.add(claim, pv)
			manager, stop := w.start()
			first, second := newPod("first", claimVolume("data", "once", false)), newPod("second", claimVolume("data", "once", false))
			if _, err := manager.SetUpPod(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			if restart {
				stop()
				manager, stop = w.start()
			}
			_, err := manager.SetUpPod(t.Context(), second)
			if !errors.Is(err, volumemanager.ErrUsedByOtherPod) || !strings.Contains(err.Error(), fmt.Sprintf("in use by pod ops-test/first (UID %s); pod ops-test/second", first.UID)) {
				t.Fatalf("err = %v", err)
			}
			if n := len(w.records()); n != 1 {
				t.Errorf("%d records, want that of the first", n)
			}
			if _, err := manager.SetUpPod(t.Context(), first); err != nil {
				t.Errorf("the first again: %v", err)
			}
			time.Sleep(10 * time.Minute) // the pauses are long by now
			synctest.Wait()
			if err := manager.PutPod(second); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			began := time.Now()
			if err := manager.TearDownPod(t.Context(), first.UID); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			if err := manager.WaitForMounted(ctx, second.UID); err != nil || time.Since(began) > 100*time.Millisecond {
				t.Errorf("err = %v after %v", err, time.Since(began))
			}
			if err := manager.TearDownPod(t.Context(), second.UID); err != nil {
				t.Error(err)
			}
			w.assertClean()
			stop()
			if err := w.fake.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
