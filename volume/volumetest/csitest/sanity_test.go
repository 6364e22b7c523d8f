package csitest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// driversVar names the directory that testdata/csi/drivers/build prints.
const driversVar = "PODVOL_CSI_DRIVERS"

// The driver is what the specification's own test takes for a driver, with each kind of
// volume.
func TestSanity(t *testing.T) {
	programs := os.Getenv(driversVar)
	if programs == "" {
		t.Logf("not run: set %s to what testdata/csi/drivers/build prints", driversVar)
		return
	}
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		for _, disk := range []csitest.Disk{csitest.Directory, csitest.Loop} {
			t.Run(string(disk), func(t *testing.T) {
				dir := csitest.SocketDir(t)
				can := csitest.AllCapabilities()
				can.Attach = true
				d := csitest.New(csitest.Config{Dir: t.TempDir(), Mounter: host.New(host.Config{}), Disk: disk, Capabilities: can})
				if err := d.Start(filepath.Join(dir, "s")); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := d.Close(); err != nil {
						t.Error(err)
					}
				})
				c := exec.CommandContext(t.Context(), filepath.Join(programs, "csi-sanity"), "-csi.endpoint", filepath.Join(dir, "s"),
					"-csi.mountdir", filepath.Join(dir, "target"), "-csi.stagingdir", filepath.Join(dir, "staging"), "-csi.testvolumesize", "67108864", "-csi.testvolumeexpandsize", "134217728")
				if out, err := c.CombinedOutput(); err != nil {
					t.Errorf("%v\n%s", err, out)
				}
			})
		}
	})
}
