package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/volumetest/csitest"
)

// newAttachingDriver is newDriver for a driver whose volumes must be attached, with a manifest
// for it. Programs outside of the test do not see what is attached.
func newAttachingDriver(t *testing.T) (d *csitest.Driver, flag, manifest string) {
	t.Helper()
	must(t, unix.Mount("run", "/run", "tmpfs", 0, "mode=755"))
	t.Cleanup(func() { must(t, unix.Unmount("/run", unix.MNT_DETACH)) })
	d, socket := newDriverThat(t, func(c *csitest.Config) { c.Capabilities.Attach = true })
	return d, "--csi-driver=" + csitest.DefaultName + "=" + socket, attached(t, notes)
}

// attached is a manifest whose driver attaches.
func attached(t *testing.T, of string) (manifest string) {
	t.Helper()
	text, err := os.ReadFile(of)
	must(t, err)
	manifest = filepath.Join(t.TempDir(), filepath.Base(of))
	must(t, os.WriteFile(manifest, []byte(strings.Replace(string(text), "attachRequired: false", "attachRequired: true", 1)), 0o600))
	return manifest
}

// assertNothingAttached fails if anything of a driver is left, or a record of a root directory.
func assertNothingAttached(t *testing.T, d *csitest.Driver, roots ...string) {
	t.Helper()
	if attached, staged, published := d.Attached(), d.Staged(), d.Published(); len(attached)+len(staged)+len(published) > 0 {
		t.Errorf("left: attached %v, staged %v, published %v", attached, staged, published)
	}
	for _, root := range roots {
		records, err := filepath.Glob(filepath.Join(root, "podvol/attached/*"))
		if err != nil || len(records) > 0 {
			t.Errorf("records of attached volumes are left: %v, %v", records, err)
		}
	}
}

// From nothing to a file on a volume that must be attached, and back to nothing.
func TestRunOnAVolumeThatIsAttached(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, flag, manifest := newAttachingDriver(t)
		base := t.TempDir()
		for n := 1; n <= 2; n++ {
			out, _ := mustPodvol(t, exitOK, "run", "-f", manifest, "--root-dir", base, flag, "--", "sh", "-c", "echo line >> /notes/log; cat /notes/log")
			if out != strings.Repeat("line\n", n) {
				t.Errorf("run %d prints %q", n, out)
			}
			assertNothingMountedBelow(t, base)
			assertNothingAttached(t, driver, base)
			if attached, detached := len(driver.CallsOf("ControllerPublishVolume")), len(driver.CallsOf("ControllerUnpublishVolume")); attached != n || detached != n {
				t.Errorf("run %d: attached %d times, detached %d times", n, attached, detached)
			}
		}
	})
}

// What mount attaches stays attached until unmount, and the driver gets its own metadata back.
func TestMountAndUnmountAVolumeThatIsAttached(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, flag, manifest := newAttachingDriver(t)
		root := t.TempDir()
		for range 2 {
			mustPodvol(t, exitOK, "mount", "-f", manifest, "--root-dir", root, flag)
		}
		if attached := driver.CallsOf("ControllerPublishVolume"); len(attached) != 1 || len(driver.Attached()) != 1 {
			t.Errorf("attached %v by %v", driver.Attached(), attached)
		}
		for _, call := range driver.CallsOf("NodeStageVolume") {
			if context := call.Request.(interface{ GetPublishContext() map[string]string }).GetPublishContext(); context["attached-to"] != "node1" {
				t.Errorf("staged with %v", context)
			}
		}
		mustPodvol(t, exitOK, "fsck", "--root-dir", root, flag)
		driver.Inject(csitest.Fault{Match: csitest.Method("ControllerUnpublishVolume"), Nth: 1, Err: errors.New("busy")})
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root, flag)
		assertNothingMountedBelow(t, root)
		assertNothingAttached(t, driver, root)
	})
}

// run-node attaches what pods come to need, and detaches what they leave.
func TestRunNodeAttaches(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, flag, manifest := newAttachingDriver(t)
		text, err := os.ReadFile(manifest)
		must(t, err)
		root := t.TempDir()
		n := runInProcess(t, t.TempDir(), root, flag)
		n.put("notes.yaml", string(text))
		n.row("notes", "mounted")
		if len(driver.Attached()) != 1 {
			t.Errorf("attached: %v", driver.Attached())
		}
		n.remove("notes.yaml")
		n.row("notes", "unmounted")
		n.stop()
		assertNothingAttached(t, driver, root)
		root = t.TempDir() // whose PersistentVolume no claim has had
		n = runInProcess(t, t.TempDir(), root, flag, "--unmount-on-exit")
		n.put("notes.yaml", string(text))
		n.row("notes", "mounted")
		n.stop()
		assertNothingAttached(t, driver, root)
	})
}

// Whatever call of the driver a run is killed at, fsck --repair detaches what it has attached.
func TestRunIsKilledWhileItAttaches(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, flag, manifest := newAttachingDriver(t)
		for _, method := range []string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"} {
			for _, after := range []bool{false, true} {
				base := t.TempDir()
				r := ownProcess(t)
				hit := make(chan struct{})
				stop := driver.Inject(csitest.Fault{Match: csitest.Method(method), Nth: 1, After: after, Hook: func() { close(hit) }, Release: make(chan struct{})})
				killed := r.command(t, "run", "-f", manifest, "--root-dir", base, flag, "--", "true")
				must(t, killed.Start())
				<-hit
				must(t, killed.Process.Kill())
				_ = killed.Wait() // it was killed
				awaitUnlocked(t, onlyEntry(t, runsOf(base).Dir()))
				driver.Settle()
				stop()
				if _, errOut := mustPodvol(t, exitFailed, "fsck", "--root-dir", base); method == "NodePublishVolume" && !strings.Contains(errOut, "--repair --root-dir "+base+" --csi-driver "+driver.Config().Name+"=SOCKET") {
					t.Errorf("fsck says nothing of the driver that the repair needs:\n%s", errOut)
				}
				mustPodvol(t, exitOK, "fsck", "--repair", "--root-dir", base, flag)
				assertNothingMountedBelow(t, base)
				assertNothingAttached(t, driver, base)
				mustPodvol(t, exitOK, "fsck", "--root-dir", base, flag)
			}
		}
	})
}

// A volume that cannot be detached is named, and its record stays until it can be.
func TestAVolumeStaysAttached(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, flag, manifest := newAttachingDriver(t)
		root := t.TempDir()
		mustPodvol(t, exitOK, "mount", "-f", manifest, "--root-dir", root, flag)
		if _, errOut := mustPodvol(t, exitOK, "fsck", "--root-dir", root, flag); !strings.Contains(errOut, "is attached to this machine since") || !strings.Contains(errOut, "pod default/notes uses it") {
			t.Errorf("fsck says of a volume in use:\n%s", errOut)
		}
		mend := driver.Inject(csitest.Fault{Match: csitest.Method("ControllerUnpublishVolume"), Err: errors.New("the cloud is away")})
		_, errOut := mustPodvol(t, exitFailed, "unmount", "--all", "--root-dir", root, "--timeout", "2s", flag)
		if !strings.Contains(errOut, "still attached") || !strings.Contains(errOut, "the cloud is away") {
			t.Errorf("unmount says:\n%s", errOut)
		}
		for with, want := range map[string][2]string{"": {"", "give --csi-driver " + driver.Config().Name + "=SOCKET"}, flag: {"detach it", ""}} {
			out, _ := mustPodvol(t, exitFailed, slices.DeleteFunc([]string{"fsck", "--root-dir", root, "-o", "json", with}, func(s string) bool { return s == "" })...)
			if rows := problemsOf(t, out); len(rows) != 1 || rows[0].Problem != "attached volume" || !strings.Contains(rows[0].Detail, "no pod uses it") || rows[0].Repair != want[0] || !strings.HasPrefix(rows[0].Advice, want[1]) {
				t.Errorf("fsck %s finds %+v", with, rows)
			}
		}
		mend()
		mustPodvol(t, exitFailed, "fsck", "--repair", "--root-dir", root)
		if out, _ := mustPodvol(t, exitOK, "fsck", "--repair", "--root-dir", root, flag); !strings.Contains(out, "done:   detach it") {
			t.Errorf("fsck --repair says:\n%s", out)
		}
		assertNothingAttached(t, driver, root)
		mustPodvol(t, exitOK, "fsck", "--root-dir", root)
	})
}

// A volume that is made for a claim is detached before it is deleted, however slowly.
func TestAVolumeIsDetachedBeforeItIsDeleted(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, flag, _ := newAttachingDriver(t)
		text, err := os.ReadFile(attached(t, ledger))
		must(t, err)
		root := t.TempDir()
		n := runInProcess(t, t.TempDir(), root, flag)
		n.put("ledger.yaml", string(text))
		n.row("ledger", "mounted")
		driver.Inject(csitest.Fault{Match: csitest.Method("ControllerUnpublishVolume"), Nth: 1, Err: errors.New("busy")})
		n.remove("ledger.yaml")
		n.row("ledger", "unmounted")
		awaitStored(t, root, "without a volume", func(s recordedClaims) bool { return len(s.claims) == 0 && len(s.volumes) == 0 })
		n.stop()
		assertNothingAttached(t, driver, root)
		if left, err := driver.Volumes(); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

// A volume that is attached and mounted grows with its claim, by the driver's two calls.
func TestAnAttachedVolumeGrows(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		driver, flag, _ := newAttachingDriver(t)
		text, err := os.ReadFile(attached(t, ledger))
		must(t, err)
		growing := strings.Replace(string(text), "reclaimPolicy: Delete", "reclaimPolicy: Delete\nallowVolumeExpansion: true", 1)
		root := t.TempDir()
		n := runInProcess(t, t.TempDir(), root, flag)
		n.put("ledger.yaml", growing)
		n.row("ledger", "mounted")
		n.put("ledger.yaml", strings.Replace(growing, "storage: 64Mi", "storage: 128Mi", 1))
		awaitStored(t, root, "larger", func(s recordedClaims) bool {
			claim := s.claims["ledger"]
			return claim != nil && claim.Status.Capacity.Storage().String() == "128Mi"
		})
		if calls := driver.CallsOf("ControllerExpandVolume"); len(calls) != 1 {
			t.Errorf("expanded by %v", calls)
		}
		n.remove("ledger.yaml")
		n.row("ledger", "unmounted")
		n.stop()
		assertNothingAttached(t, driver, root)
	})
}

// A disk of a stock plugin that knows of attaching waits for nobody where drivers attach.
func TestStockDisksBesideADriver(t *testing.T) {
	nstest.RunAs(t, []nstest.Mode{nstest.Root}, func(t *testing.T) {
		_, flag, _ := newAttachingDriver(t)
		file := openFile(t, podNamed("lun", `{name: lun, iscsi: {targetPortal: "127.0.0.1:1", iqn: "iqn.2026-11.com.example:disk", lun: 0}}`))
		_, errOut := mustPodvol(t, exitFailed, "mount", "-f", file, "--root-dir", t.TempDir(), "--timeout", "2s", flag)
		if !strings.Contains(errOut, "kubernetes.io/iscsi") || strings.Contains(errOut, "reported attached") {
			t.Errorf("mount says:\n%s", errOut)
		}
	})
}
