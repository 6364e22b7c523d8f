package main

import (
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

const ledger = "../../testdata/csi/claim.yaml"

// A claim gets a volume of a driver, keeps it from run to run, and gives it back.
func TestRunOnAVolumeThatADriverMakes(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, socket := newDriver(t)
		driver.Kill()
		driver.Configure(func(c *csitest.Config) { c.CreateOnUse = false })
		if err := driver.Start(socket); err != nil {
			t.Fatal(err)
		}
		base, flag := t.TempDir(), "--csi-driver="+csitest.DefaultName+"="+socket
		for n := 1; n <= 2; n++ {
			out, _ := mustPodvol(t, exitOK, "run", "-f", ledger, "--root-dir", base, flag, "--", "sh", "-c", "echo line >> /ledger/log; cat /ledger/log")
			if out != strings.Repeat("line\n", n) {
				t.Errorf("run %d prints %q", n, out)
			}
		}
		volumes, err := driver.Volumes()
		if err != nil || len(volumes) != 1 {
			t.Fatalf("the driver has %q, %v", volumes, err)
		}
		if out, _ := mustPodvol(t, exitOK, "pvc", "--root-dir", base); !strings.Contains(out, "ledger") || !strings.Contains(out, "Bound") {
			t.Errorf("pvc prints\n%s", out)
		}
		// Without the driver the volume stays, and the message says how it goes.
		_, errOut := mustPodvol(t, exitOK, "pvc", "delete", "default/ledger", "--root-dir", base, "--dry-run")
		if !strings.Contains(errOut, "would be deleted") || !strings.Contains(errOut, volumes[0]) {
			t.Errorf("pvc delete --dry-run prints\n%s", errOut)
		}
		_, errOut = mustPodvol(t, exitFailed, "pvc", "delete", "default/ledger", "--root-dir", base)
		if !strings.Contains(errOut, "--csi-driver "+csitest.DefaultName+"=SOCKET") {
			t.Errorf("pvc delete without a driver prints\n%s", errOut)
		}
		if left, _ := driver.Volumes(); len(left) != 1 {
			t.Fatalf("the driver has %q", left)
		}
		out, _ := mustPodvol(t, exitOK, "pv", "--root-dir", base, "-o", "name")
		name := strings.TrimPrefix(strings.TrimSpace(out), "persistentvolume/")
		mustPodvol(t, exitOK, "pv", "delete", name, "--root-dir", base, flag)
		if left, err := driver.Volumes(); err != nil || len(left) > 0 {
			t.Errorf("the driver has %q left, %v", left, err)
		}
		assertNothingMountedBelow(t, base)
	})
}

// As a whole: the claim goes, and its volume with it.
func TestDeleteTheClaimOfADriversVolume(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, socket := newDriver(t)
		base, flag := t.TempDir(), "--csi-driver="+csitest.DefaultName+"="+socket
		mustPodvol(t, exitOK, "mount", "-f", ledger, "--root-dir", base, flag)
		_, errOut := mustPodvol(t, exitFailed, "pvc", "delete", "default/ledger", "--root-dir", base, flag)
		if !strings.Contains(errOut, "unmount it first") {
			t.Errorf("pvc delete of a mounted claim prints\n%s", errOut)
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", base, flag)
		_, errOut = mustPodvol(t, exitOK, "pvc", "delete", "default/ledger", "--root-dir", base, flag)
		if left, err := driver.Volumes(); err != nil || len(left) > 0 || !strings.Contains(errOut, "its data deleted") {
			t.Errorf("the driver has %q left, %v; pvc delete prints\n%s", left, err, errOut)
		}
	})
}
