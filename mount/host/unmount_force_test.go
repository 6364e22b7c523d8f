package host_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// TestMountUtilsHelpersTakeTheMounter unmounts by a helper of mount-utils that
// wants a mounter that can force.
func TestMountUtilsHelpersTakeTheMounter(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		m := host.New(host.Config{})
		target := filepath.Join(t.TempDir(), "target")
		if err := os.Mkdir(target, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := m.Mount("tmpfs", target, "tmpfs", nil); err != nil {
			t.Fatal(err)
		}
		if err := k8smount.CleanupMountWithForce(target, m, false, time.Minute); err != nil {
			t.Error(err)
		}
		if there, err := k8smount.PathExists(target); there || err != nil {
			t.Errorf("the mount point is left: %v", err)
		}
		if err := m.UnmountWithForce(t.TempDir(), time.Minute); !errors.Is(err, mount.ErrNotMounted) {
			t.Errorf("nothing is mounted: %v", err)
		}
	})
}
