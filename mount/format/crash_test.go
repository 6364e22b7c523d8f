package format_test

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/util/testenv/loopdev"
)

// A mkfs that dies at whatever moment leaves a device that is blank still, that
// is refused, or whose file system is whole.
func TestHalfAFileSystemIsNeverTakenForAWhole(t *testing.T) {
	const moments = 12
	onHost(t, func(t *testing.T) {
		for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
			name := "mkfs." + fstype
			start := time.Now()
			run(t, name, loopdev.New(t, roomy).Path)
			whole := time.Since(start)
			refused, formatted, found := 0, 0, 0
			for i := range moments {
				d, target := loopdev.New(t, roomy), t.TempDir()
				mkfs := exec.Command(name, d.Path)
				if err := mkfs.Start(); err != nil {
					t.Fatal(err)
				}
				killer := time.AfterFunc(whole*time.Duration(i)/moments, func() { mkfs.Process.Kill() })
				died := mkfs.Wait() != nil
				killer.Stop()
				got, err := formatter().FormatAndMount(t.Context(), request(d.Path, target, fstype))
				switch {
				case errors.Is(err, format.ErrNotBlank) && died:
					refused++
					continue
				case err != nil:
					t.Errorf("%s, killed after %d/%d: %+v, %v", fstype, i, moments, got, err)
					continue
				case got.Formatted:
					formatted++
				default:
					found++
				}
				if got.Formatted && !died || got.Corrected {
					t.Errorf("%s, killed after %d/%d (died: %v): %+v", fstype, i, moments, died, got)
				}
				unmount(t, target)
			}
			t.Logf("%s, killed at %d moments: %d still blank, %d refused, %d whole", fstype, moments, formatted, refused, found)
		}
	})
}
