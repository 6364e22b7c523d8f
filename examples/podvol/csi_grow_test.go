package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// ledgerOf writes the manifests of the ledger with changes, given as pairs of what is replaced and
// by what.
func ledgerOf(t *testing.T, changes ...string) string {
	t.Helper()
	text, err := os.ReadFile(ledger)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ledger.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer(changes...).Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const (
	growable = "provisioner: csitest.podvol.io\nallowVolumeExpansion: true"
	isMade   = "provisioner: csitest.podvol.io"
	was      = "storage: 64Mi"
)

// claimRow is what podvol pvc says of the ledger.
func claimRow(t *testing.T, base string) string {
	t.Helper()
	out, _ := mustPodvol(t, exitOK, "pvc", "--root-dir", base)
	return out
}

// A run with a larger claim has a larger volume: the driver's, and before the program begins its
// file system.
func TestRunOnALargerClaim(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, socket := newDriverThat(t, func(c *csitest.Config) { c.CreateOnUse, c.ExpandOnNode = false, true })
		base, flag := t.TempDir(), "--csi-driver="+csitest.DefaultName+"="+socket
		run := func(size string) (errOut string) {
			_, errOut = mustPodvol(t, exitOK, "run", "-f", ledgerOf(t, isMade, growable, was, "storage: "+size), "--root-dir", base, flag, "--", "sh", "-c", "echo line >> /ledger/log")
			return errOut
		}
		run("64Mi")
		for n, size := range []string{"128Mi", "128Mi", "256Mi"} {
			errOut := run(size)
			if row := claimRow(t, base); !strings.Contains(row, size) {
				t.Errorf("run %d with %s: pvc prints\n%s and run\n%s", n, size, row, errOut)
			}
		}
		calls := driver.Calls()
		var order []string
		for _, call := range calls {
			switch call.Method {
			case "ControllerExpandVolume", "NodeExpandVolume", "NodePublishVolume":
				order = append(order, call.Method)
			}
		}
		want := "NodePublishVolume ControllerExpandVolume NodeExpandVolume NodePublishVolume NodePublishVolume ControllerExpandVolume NodeExpandVolume NodePublishVolume"
		if got := strings.Join(order, " "); got != want {
			t.Errorf("calls %s, want %s", got, want)
		}
		mustPodvol(t, exitOK, "pvc", "delete", "default/ledger", "--root-dir", base, flag)
	})
}

// A volume that is mounted grows under its pod, with its file system or device. A driver that says
// so and does nothing is taken at its word, once: the pod keeps what it has.
func TestMountALargerClaim(t *testing.T) {
	for _, block := range []bool{false, true} {
		for _, misbehaviours := range [][]csitest.Misbehaviour{nil, {csitest.ExpandGrowsNothing}} {
			t.Run(fmt.Sprintf("block %v, %v", block, misbehaviours), func(t *testing.T) {
				nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) { mountALargerClaim(t, block, misbehaviours) })
			})
		}
	}
}

func mountALargerClaim(t *testing.T, block bool, misbehaviours []csitest.Misbehaviour) {
	driver, socket := newDriverThat(t, func(c *csitest.Config) { c.CreateOnUse, c.Disk, c.Misbehaviours = false, csitest.Loop, misbehaviours })
	base, flag := t.TempDir(), "--csi-driver="+csitest.DefaultName+"="+socket
	mount := func(size string) (bytes int64) {
		t.Helper()
		changes := []string{isMade, growable + "\nparameters: {csi.storage.k8s.io/fstype: xfs}", was, "storage: " + size} // ext4 needs a real root to grow
		if block {
			changes = append(changes, "  accessModes: [ReadWriteOnce]", "  accessModes: [ReadWriteOnce]\n  volumeMode: Block", "volumeMounts:", "volumeDevices:", "mountPath: /ledger", "devicePath: /dev/ledger")
		}
		mustPodvol(t, exitOK, "mount", "-f", ledgerOf(t, changes...), "--root-dir", base, flag)
		if row := claimRow(t, base); !strings.Contains(row, size) {
			t.Errorf("pvc prints\n%s", row)
		}
		volumes, err := driver.Volumes()
		if err == nil && block {
			bytes, err = driver.DeviceSize(volumes[0])
			must(t, err)
			return bytes
		}
		var found []string
		if err == nil {
			found, err = filepath.Glob(filepath.Join(base, "pods/*/volumes/kubernetes.io~csi/*/mount"))
		}
		var fs unix.Statfs_t
		if err == nil && len(found) == 1 {
			err = unix.Statfs(found[0], &fs)
		}
		if err != nil {
			t.Fatal(err)
		}
		return int64(fs.Blocks) * fs.Bsize
	}
	before := mount("512Mi")
	for range 2 {
		if after := mount("1Gi"); (after > before+before/2) != (misbehaviours == nil) {
			t.Errorf("it had %d bytes, and has %d", before, after)
		}
	}
	if calls := driver.CallsOf("NodeExpandVolume"); len(calls) != 1 || len(driver.CallsOf("NodeUnpublishVolume")) != 0 {
		t.Errorf("calls %v", driver.Calls())
	}
	mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", base, flag)
	mustPodvol(t, exitOK, "pvc", "delete", "default/ledger", "--root-dir", base, flag)
	assertNothingMountedBelow(t, base)
}

// A volume that does not grow is used as it is, and the command says why; so does the claim.
func TestRunOnAClaimThatDoesNotGrow(t *testing.T) {
	for name, tc := range map[string]struct {
		class string // else one that allows growth
		no    bool   // the driver cannot
		err   error  // of its call
		size  string // else 128Mi
		says  string
	}{
		"its class forbids it":  {class: isMade, says: "has not allowVolumeExpansion: true"},
		"its driver cannot":     {no: true, says: "csitest.podvol.io"},
		"the size is too large": {size: "2Ei", says: "bytes are too much"},
		"the driver fails":      {err: errors.New("the pool is full"), says: "the pool is full"},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
				driver, socket := newDriverThat(t, func(c *csitest.Config) {
					c.CreateOnUse, c.Capabilities.Expand = false, !tc.no
				})
				base, flag := t.TempDir(), "--csi-driver="+csitest.DefaultName+"="+socket
				if tc.err != nil {
					driver.Inject(csitest.Fault{Match: csitest.Method("ControllerExpandVolume"), Err: tc.err})
				}
				larger := cmp.Or(tc.size, "128Mi")
				for _, size := range []string{"64Mi", larger, larger} {
					file := ledgerOf(t, isMade, cmp.Or(tc.class, growable), was, "storage: "+size)
					out, errOut := mustPodvol(t, exitOK, "run", "-f", file, "--root-dir", base, flag, "--", "sh", "-c", "echo line >> /ledger/log; cat /ledger/log")
					if told := strings.Contains(errOut, tc.says); told != (size == larger) || !strings.Contains(out, "line") {
						t.Errorf("with %s run prints %q and\n%s", size, out, errOut)
					}
				}
				if row, errOut := mustPodvol(t, exitOK, "pvc", "--root-dir", base); !strings.Contains(row, "64Mi") || !strings.Contains(errOut, tc.says) {
					t.Errorf("pvc prints\n%s%s", row, errOut)
				}
				if tc.size != "" { // and a smaller size is asked for, which can be had
					mustPodvol(t, exitOK, "run", "-f", ledgerOf(t, isMade, growable, was, "storage: 96Mi"), "--root-dir", base, flag, "--", "true")
					if row, errOut := mustPodvol(t, exitOK, "pvc", "--root-dir", base); !strings.Contains(row, "96Mi") || errOut != "" {
						t.Errorf("with less pvc prints\n%s%s", row, errOut)
					}
				}
				mustPodvol(t, exitOK, "pvc", "delete", "default/ledger", "--root-dir", base, flag)
			})
		})
	}
}

// A run whose claim names another VolumeAttributesClass has its volume changed before the program
// begins. What the driver refuses is told, and the claim can go back.
func TestRunWithOtherAttributes(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, socket := newDriverThat(t, func(c *csitest.Config) { c.CreateOnUse = false })
		base, flag := t.TempDir(), "--csi-driver="+csitest.DefaultName+"="+socket
		classes := ""
		for name, parameters := range map[string]string{"slow": `iops: "100"`, "quick": `iops: "9000"`, "odd": "colour: red"} {
			classes += "apiVersion: storage.k8s.io/v1\nkind: VolumeAttributesClass\nmetadata: {name: " + name + "}\ndriverName: " + csitest.DefaultName + "\nparameters: {" + parameters + "}\n---\n"
		}
		for _, step := range []struct{ class, iops, says string }{
			{"slow", "100", ""},
			{"quick", "9000", ""},
			{"odd", "9000", "colour"},
			{"odd", "9000", "colour"}, // as the claim remembers
			{"slow", "100", ""},
			{"none", "100", `volumeattributesclass.storage.k8s.io "none" not found; create it`},
			{"quick", "9000", ""},
		} {
			file := ledgerOf(t, "apiVersion: v1\nkind: PersistentVolumeClaim", classes+"apiVersion: v1\nkind: PersistentVolumeClaim", "storageClassName: by-driver", "storageClassName: by-driver\n  volumeAttributesClassName: "+step.class)
			_, errOut := mustPodvol(t, exitOK, "run", "-f", file, "--root-dir", base, flag, "--", "true")
			if strings.Contains(errOut, "does not get what it asks for") != (step.says != "") || !strings.Contains(errOut, step.says) {
				t.Errorf("with %s run prints\n%s", step.class, errOut)
			}
			volumes, err := driver.Volumes()
			if err != nil || len(volumes) != 1 {
				t.Fatalf("the driver has %q, %v", volumes, err)
			}
			if has, err := driver.Modified(volumes[0]); err != nil || has["iops"] != step.iops {
				t.Errorf("with %s the volume has %v, %v", step.class, has, err)
			}
			_, errOut = mustPodvol(t, exitOK, "pvc", "--root-dir", base)
			if strings.Contains(errOut, "ModifyVolumeError") != (step.class == "odd") {
				t.Errorf("with %s pvc prints\n%s", step.class, errOut)
			}
		}
		mustPodvol(t, exitOK, "pvc", "delete", "default/ledger", "--root-dir", base, flag)
	})
}
