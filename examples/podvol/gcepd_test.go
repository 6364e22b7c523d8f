package main

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// driversVar names the directory that testdata/csi/drivers/build prints.
const driversVar = "PODVOL_CSI_DRIVERS"

// cloud is Google's driver over a cloud on this machine.
type cloud struct {
	t           *testing.T
	dir, socket string
}

const cloudZone = "country-region-zone"

// newCloud starts the driver of a cloud that has disks, by their names.
func newCloud(t *testing.T, programs string, disks ...string) *cloud {
	t.Helper()
	dir := csitest.SocketDir(t)
	c := &cloud{t: t, dir: filepath.Join(dir, "disks"), socket: filepath.Join(dir, "s")}
	must(t, os.Mkdir(c.dir, 0o700))
	for _, name := range disks {
		path := filepath.Join(c.dir, name+".image")
		must(t, os.WriteFile(path, nil, 0o600))
		must(t, os.Truncate(path, 10<<30))
	}
	var log bytes.Buffer
	driver := exec.Command(filepath.Join(programs, "gcepd"), "-socket", c.socket, "-dir", c.dir)
	driver.Stdout, driver.Stderr = &log, &log
	must(t, driver.Start())
	t.Cleanup(func() {
		_ = driver.Process.Kill()
		_ = driver.Wait() // its error is the signal
		if t.Failed() {
			t.Logf("the driver's log:\n%s", log.String())
		}
	})
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for late := time.After(time.Minute); ; {
		conn, err := net.Dial("unix", c.socket)
		if err == nil {
			must(t, conn.Close())
			return c
		}
		select {
		case <-again.C:
		case <-late:
			t.Fatalf("the driver does not answer: %v", err)
		}
	}
}

// disks are the files of disks, and the links to the devices of those that are attached.
func (c *cloud) disks() (names []string) {
	c.t.Helper()
	all, err := os.ReadDir(c.dir)
	must(c.t, err)
	for _, one := range all {
		names = append(names, one.Name())
	}
	return names
}

// classByOldName has a volume made by the name that the provisioner had when Kubernetes had code
// for it.
const classByOldName = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard}
provisioner: kubernetes.io/gce-pd
parameters: {type: pd-balanced, fstype: ext4}
volumeBindingMode: WaitForFirstConsumer
reclaimPolicy: Delete
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: made}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: standard
  resources: {requests: {storage: 10Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: maker}
spec:
  containers:
  - {name: main, image: none, volumeMounts: [{name: made, mountPath: /made}]}
  volumes:
  - {name: made, persistentVolumeClaim: {claimName: made}}
`

// Google's driver has the disks that manifests name as Kubernetes' own code for them did: inline,
// by a PersistentVolume, and by a class, whose disk is deleted with its claim.
func TestGCEPersistentDisksByTheirOldName(t *testing.T) {
	programs := os.Getenv(driversVar)
	if programs == "" {
		t.Logf("not run: set %s to what testdata/csi/drivers/build prints", driversVar)
		return
	}
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		c := newCloud(t, programs, "ledger-disk", "archive-disk")
		existing := c.disks()
		inTree, err := os.ReadFile("../../testdata/csi/in-tree.yaml")
		must(t, err)
		manifest := filepath.Join(t.TempDir(), "in-tree.yaml")
		must(t, os.WriteFile(manifest, bytes.ReplaceAll(inTree, []byte("us-east1-b"), []byte(cloudZone)), 0o600))
		base := t.TempDir()
		run := func(manifest, command string) string {
			t.Helper()
			out, _ := mustPodvol(t, exitOK, "run", "-f", manifest, "--root-dir", base, "--csi-driver", c.socket, "--", "sh", "-c", command)
			assertNothingMountedBelow(t, base)
			return out
		}
		for n := 1; n <= 2; n++ {
			if out := run(manifest, "echo line | tee -a /ledger/log >> /archive/log; cat /ledger/log /archive/log"); out != strings.Repeat("line\n", 2*n) {
				t.Errorf("run %d prints %q", n, out)
			}
			if left := c.disks(); !slices.Equal(left, existing) {
				t.Errorf("the disks are %q after the run, and were %q", left, existing)
			}
		}

		byClass := filepath.Join(t.TempDir(), "class.yaml")
		must(t, os.WriteFile(byClass, []byte(classByOldName), 0o600))
		for n := 1; n <= 2; n++ {
			if out := run(byClass, "echo line >> /made/log; cat /made/log"); out != strings.Repeat("line\n", n) {
				t.Errorf("run %d prints %q", n, out)
			}
		}
		if out, _ := mustPodvol(t, exitOK, "pv", "--root-dir", base, "-o", "yaml"); !strings.Contains(out, "gcePersistentDisk:") {
			t.Errorf("the volume that was made is\n%s", out)
		}
		if made := c.disks(); len(made) <= len(existing) {
			t.Errorf("the disks are %q", made)
		}
		mustPodvol(t, exitOK, "pvc", "delete", "default/made", "--root-dir", base, "--csi-driver", c.socket)
		if left := c.disks(); !slices.Equal(left, existing) {
			t.Errorf("the disks are %q once the claim is deleted, and were %q", left, existing)
		}
	})
}
