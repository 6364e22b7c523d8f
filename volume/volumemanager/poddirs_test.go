package volumemanager_test

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/nstest"
)

// Where many pods come and go below one directory, ext4 without a journal is
// slow, unless they are laid out over the disk; package topdir measures it.
func TestPodsAreLaidOutOverTheDisk(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		dir := t.TempDir()
		if !mountFresh(t, dir) {
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
