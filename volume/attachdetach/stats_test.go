package attachdetach_test

import (
	"maps"
	"testing"
	"testing/synctest"
)

// Metrics show what is wanted and what is attached, of each driver.
func TestStatsCountVolumesByPlugin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, "a", "b", "shared")
		w.create(foreignAttachment("lonely", "nothing"))
		w.addPod("p", "n0", "a", "shared")
		w.addPod("q", "n0", "a")
		w.addPod("r", "n1", "a", "shared")
		w.settle()
		const ours = "kubernetes.io/csi:" + driver
		got := w.running.Stats()
		if want := map[string]int{ours: 4}; !maps.Equal(got.Wanted, want) {
			t.Errorf("wanted: %v, want %v", got.Wanted, want)
		}
		if want := map[string]int{ours: 3, "unknown": 1}; !maps.Equal(got.Attached, want) {
			t.Errorf("attached: %v, want %v", got.Attached, want)
		}
		if len(got.Forced) > 0 {
			t.Errorf("forced: %v", got.Forced)
		}
	})
}
