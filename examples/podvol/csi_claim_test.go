package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

// A driver that needs a secret to delete a volume gets it from the manifest that has it, and
// the records keep none.
func TestDeleteWithASecret(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, socket := newDriver(t)
		base, dir, flag := t.TempDir(), t.TempDir(), "--csi-driver="+csitest.DefaultName+"="+socket
		text, err := os.ReadFile(ledger)
		if err != nil {
			t.Fatal(err)
		}
		named := strings.Replace(string(text), "provisioner: "+csitest.DefaultName+"\n", "provisioner: "+csitest.DefaultName+`
parameters:
  csi.storage.k8s.io/provisioner-secret-name: admin
  csi.storage.k8s.io/provisioner-secret-namespace: safe
`, 1)
		pods, secrets := filepath.Join(dir, "pod.yaml"), filepath.Join(dir, "secret.yaml")
		secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: admin, namespace: safe}\nstringData: {password: p4ss-w0rd}\n"
		if err := errors.Join(os.WriteFile(pods, []byte(named), 0o600), os.WriteFile(secrets, []byte(secret), 0o600)); err != nil {
			t.Fatal(err)
		}
		mustPodvol(t, exitOK, "mount", "-f", pods, "-f", secrets, "--root-dir", base, flag)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", base, flag)
		mustPodvol(t, exitUsage, "pvc", "delete", "default/ledger", "--root-dir", base, flag, "-f", filepath.Join(dir, "none.yaml"))
		_, errOut := mustPodvol(t, exitFailed, "pvc", "delete", "default/ledger", "--root-dir", base, flag)
		if left, err := driver.Volumes(); err != nil || len(left) != 1 || !strings.Contains(errOut, "safe/admin") {
			t.Errorf("the driver has %q, %v; without the secret pvc delete prints\n%s", left, err, errOut)
		}
		out, _ := mustPodvol(t, exitOK, "pv", "--root-dir", base, "-o", "name")
		mustPodvol(t, exitOK, "pv", "delete", strings.TrimPrefix(strings.TrimSpace(out), "persistentvolume/"), "--root-dir", base, flag, "-f", secrets)
		if left, err := driver.Volumes(); err != nil || len(left) > 0 {
			t.Errorf("the driver has %q left, %v", left, err)
		}
		calls := driver.CallsOf("DeleteVolume")
		if last := calls[len(calls)-1]; !strings.Contains(fmt.Sprint(last.Request), "p4ss-w0rd") {
			t.Errorf("%v has not got the secret", last)
		}
		err = filepath.WalkDir(base, func(path string, e os.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			kept, err := os.ReadFile(path)
			if strings.Contains(string(kept), "p4ss-w0rd") {
				t.Errorf("%s has the secret", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
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
