package volumemanager_test

import (
	"fmt"
	"testing"

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
