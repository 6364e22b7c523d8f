package volumemanager_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// A disk that fails once, at any of a pod's directories, leaves none for ever: the
// teardown says so, keeps the record, and the next one finishes.
func TestDirectoriesThatCouldNotBeRemoved(t *testing.T) {
	for failing := 1; ; failing++ {
		w := newWorld(t)
		pod := newPod("web", emptyDirVolume("b", ""))
		m, stop := w.start()
		mustSetUp(t, m, pod)
		var calls atomic.Int64
		m.RemoveDirsBy(func(path string) error {
			if calls.Add(1) == int64(failing) {
				return unix.EIO
			}
			return unix.Rmdir(path)
		})
		err := m.TearDownPod(t.Context(), pod.UID)
		if calls.Load() < int64(failing) {
			must(t, err)
			stop()
			if failing < 4 {
				t.Errorf("only %d directories were removed", calls.Load())
			}
			return
		}
		if !errors.Is(err, unix.EIO) {
			t.Errorf("call %d fails: %v", failing, err)
		}
		must(t, m.TearDownPod(t.Context(), pod.UID))
		w.assertClean()
		stop()
	}
}
