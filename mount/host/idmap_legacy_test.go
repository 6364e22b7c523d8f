package host

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// Without the calls nothing stands in for an idmapped mount.
func TestIDMapOnOldKernels(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, lacking := range []string{"open_tree", "mount_setattr"} {
			t.Run(lacking, func(t *testing.T) {
				source, target := t.TempDir(), t.TempDir()
				m := New(Config{})
				m.api = lackingCalls(unix.ENOSYS, lacking)
				ids := []IDMapping{{Size: 1}}
				err := m.BindIDMapped(t.Context(), mount.Request{Source: source, Target: target, Options: []string{"bind"}}, IDMap{ids, ids})
				e, ok := errors.AsType[*IDMapError](err)
				if !ok || !errors.Is(err, mount.ErrNoIDMap) || !strings.Contains(e.Reason, "they need Linux") {
					t.Errorf("BindIDMapped: %v", err)
				}
				if e, ok := errors.AsType[*IDMapError](m.ProbeIDMap(t.Context(), source)); !ok || !errors.Is(e, unix.ENOSYS) {
					t.Errorf("ProbeIDMap: %v", e)
				}
				if entry, mounted, err := m.table.At(target); mounted || err != nil {
					t.Errorf("%v, %v", entry, err)
				}
			})
		}
	})
}
