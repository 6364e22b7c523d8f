package glusterfs_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fakehost"
	"github.com/podvol/podvol/volume/plugins/glusterfs"
)

// A client before 3.11 does not know auto_unmount, and refuses what it does not know.
func TestClientWithoutAutoUnmount(t *testing.T) {
	testtool.Need(t, "mount")
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		helper := filepath.Join(t.TempDir(), "mount")
		const script = "#!/bin/sh\ncase \"$*\" in *auto_unmount*) echo Invalid option auto_unmount >&2; exit 1;; esac\n" +
			"for target; do :; done\nexec mount -t tmpfs older \"$target\"\n"
		testtool.Must(t, os.WriteFile(helper, []byte(script), 0o755))
		n := &node{fakehost.NewOnKernel(t, host.New(host.Config{MountCommand: helper, CgroupDir: t.TempDir()})), t, glusterfs.New(glusterfs.Config{TrustPodNamespaces: true})}
		n.Add(endpoints("default", "gluster", "192.0.2.1"))
		testtool.Must(t, n.plugin.Init(n))
		m, u, at := n.pod("a", "data", false)
		testtool.Must(t, m.SetUp(t.Context(), volume.MounterArgs{}))
		if e, mounted, err := table.Of(n.GetMounter()).At(at); err != nil || !mounted || e.Source != "older" {
			t.Errorf("mounted: %+v, %v, %v", e, mounted, err)
		}
		testtool.Must(t, u.TearDown(t.Context()))
		n.wantGone(at)
	})
}
