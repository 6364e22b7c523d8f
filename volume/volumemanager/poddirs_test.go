package volumemanager_test

import (
	"errors"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// Where many pods come and go below one directory, ext4 without a journal is
// slow, unless they are laid out over the disk; package topdir measures it.
func TestPodsAreLaidOutOverTheDisk(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		dir := t.TempDir()
		if !figures.FreshExt4(t, dir) {
			t.Fatal("there are no loop devices")
		}
		w := newWorldIn(t, dir)
		_, stop := w.start()
		defer stop()
		fd, err := unix.Open(filepath.Join(w.root, "pods"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		const topDir = 0x00020000 // FS_TOPDIR_FL
		if flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS); err != nil || flags&topDir == 0 {
			t.Errorf("the pods' directory has the attributes %#x, %v", flags, err)
		}
	})
}

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
