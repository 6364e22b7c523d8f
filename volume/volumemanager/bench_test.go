package volumemanager_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/podvol/podvol/volume/volumemanager"
)

// One pod with one NFS volume, the record synced, the root directory where
// TMPDIR is: set TMPDIR to a directory on a disk, not on tmpfs. Each round is
// another pod, and nothing is torn down, since ext4 is slow to make
// directories for a while after many were removed.
func BenchmarkSetUpPod(b *testing.B) {
	w := newWorld(b)
	manager, _ := w.start()
	for i := 0; b.Loop(); i++ {
		setUpOne(b, manager, i)
	}
}

func setUpOne(tb testing.TB, manager *volumemanager.Manager, i int) {
	pod := newPod(fmt.Sprintf("p%d", i), nfsVolume("v", "10.0.0.1"))
	if _, err := manager.SetUpPod(tb.Context(), pod); err != nil {
		tb.Fatal(err)
	}
}

// Setting up what is set up already: nothing is written.
func BenchmarkSetUpPodAgain(b *testing.B) {
	w := newWorld(b)
	manager, _ := w.start()
	setUpOne(b, manager, 0)
	for b.Loop() {
		setUpOne(b, manager, 0)
	}
}

// TestFigures prints how long a set-up takes: below a millisecond on a quiet
// machine. It asserts nothing of that, since a time by itself says more of the
// machine's load than of the code.
func TestFigures(t *testing.T) {
	w := newWorld(t)
	manager, _ := w.start()
	const rounds = 200
	took := make([]time.Duration, rounds)
	for i := range took {
		start := time.Now()
		setUpOne(t, manager, i)
		took[i] = time.Since(start)
	}
	slices.Sort(took)
	median := took[rounds/2]
	t.Logf("SetUpPod with one NFS volume: median %v of %d", median, rounds)
	volumes := manager.Explain()
	if len(volumes) != rounds || slices.ContainsFunc(volumes, func(v volumemanager.VolumeStatus) bool { return v.State != volumemanager.StateMounted }) {
		t.Errorf("%d volumes, not all mounted", len(volumes))
	}
}
