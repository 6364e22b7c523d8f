package volumemanager_test

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

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

// Pods that are declared all at once, each with one NFS volume, until all are
// mounted. What a pod costs should not depend on how many there are. Each round
// has a root of its own, and nothing is removed before the end.
func BenchmarkPodsAtOnce(b *testing.B) {
	dir := b.TempDir()
	for _, n := range []int{110, 5000, 20000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			pods := make([]*v1.Pod, n)
			for i := range pods {
				pods[i] = newPod(fmt.Sprintf("p%d", i), nfsVolume("v", "10.0.0.1"))
			}
			var took, cpu time.Duration
			rounds := 0
			for ; b.Loop(); rounds++ {
				w := newWorldIn(b, filepath.Join(dir, fmt.Sprintf("%d-%d", n, rounds)))
				manager, stop := w.start()
				runtime.GC()
				before := usage()
				took += timed(func() { setUpAll(b, manager, pods) })
				cpu += usage().cpu - before.cpu
				stop()
			}
			each := float64(rounds * n)
			b.ReportMetric(float64(took.Microseconds())/each, "µs/pod")
			b.ReportMetric(float64(cpu.Microseconds())/each, "cpu-µs/pod")
		})
	}
}

func setUpAll(tb testing.TB, manager *volumemanager.Manager, pods []*v1.Pod) {
	for _, p := range pods {
		if err := manager.PutPod(p); err != nil {
			tb.Fatal(err)
		}
	}
	for _, p := range pods {
		if err := manager.WaitForMounted(tb.Context(), p.UID); err != nil {
			tb.Fatal(err)
		}
	}
}
