package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// A disk that is mounted while run-node runs is what a pod has waited for.
func TestRunNodeDiscoversDisks(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		disks, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
		n := runProcess(t, t.TempDir(), root, "--discover", disks+"=disks")
		n.put("db.yaml", "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: disks}\nprovisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n"+
			"---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: shop}\n"+
			"spec: {accessModes: [ReadWriteOnce], storageClassName: disks, resources: {requests: {storage: 4Mi}}}\n---\n"+
			podNamed("db", "{name: data, persistentVolumeClaim: {claimName: data}}"))
		n.hears(" of 1 pod")
		path, mounter := filepath.Join(disks, "ssd"), host.New(host.Config{})
		mountedDisk(t, mounter, path)
		t.Cleanup(func() {
			if err := mounter.Unmount(path); err != nil {
				t.Error(err)
			}
		})
		if r := n.row("data", "mounted"); !strings.Contains(r.Source, path) {
			t.Errorf("the row is %+v", r)
		}
		if out, _ := mustPodvol(t, exitOK, "pv", "--root-dir", root); strings.Count(out, "Bound") != 1 || !strings.Contains(out, "shop/data") {
			t.Errorf("stdout:\n%s", out)
		}
		n.stop()
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}

// A disk whose claim is deleted keeps its data, unless run-node is told to clean
// disks: then it is offered again, empty.
func TestRunNodeCleansDisksIfToldTo(t *testing.T) {
	for action, want := range map[string]struct{ phase, content string }{
		"":        {"Released", "kept"},
		"dry-run": {"Failed", "kept"},
		"delete":  {"Available", ""},
	} {
		t.Run("action "+action, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				disks, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
				path, mounter := filepath.Join(disks, "ssd"), host.New(host.Config{})
				mountedDisk(t, mounter, path)
				t.Cleanup(func() {
					if err := mounter.Unmount(path); err != nil {
						t.Error(err)
					}
				})
				flags := []string{"--discover", disks + "=disks"}
				if action != "" {
					flags = append(flags, "--clean-disks", action)
				}
				n := runProcess(t, t.TempDir(), root, flags...)
				n.put("class.yaml", "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: disks}\nprovisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n")
				n.put("data.yaml", "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: shop}\n"+
					"spec: {accessModes: [ReadWriteOnce], storageClassName: disks, resources: {requests: {storage: 4Mi}}}\n")
				n.put("db.yaml", podNamed("db", "{name: data, persistentVolumeClaim: {claimName: data}}"))
				n.row("data", "mounted")
				if err := os.WriteFile(filepath.Join(path, "file"), []byte("kept"), 0o600); err != nil {
					t.Fatal(err)
				}
				n.remove("db.yaml")
				n.row("data", "unmounted")
				n.remove("data.yaml")
				awaitStored(t, root, "the volume as "+want.phase, func(s recordedClaims) bool {
					if len(s.claims) != 0 || len(s.volumes) != 1 {
						return false
					}
					for _, pv := range s.volumes {
						return string(pv.Status.Phase) == want.phase
					}
					return false
				})
				n.stop()
				if content, err := os.ReadFile(filepath.Join(path, "file")); string(content) != want.content {
					t.Errorf("%q is on the disk, err = %v", content, err)
				}
			})
		})
	}
}

func TestCleanDisksFlag(t *testing.T) {
	dir := t.TempDir()
	for _, flags := range [][]string{{"--clean-disks", "delete"}, {"--clean-disks", "all", "--discover", dir + "=disks"}} {
		if _, errOut := mustPodvol(t, exitUsage, append([]string{"run-node", "-f", dir, "--fake"}, flags...)...); !strings.Contains(errOut, "--clean-disks") {
			t.Errorf("%q: %s", flags, errOut)
		}
	}
}

func TestDiscoverFlag(t *testing.T) {
	dir := t.TempDir()
	for _, value := range []string{dir, dir + "=", "=disks", filepath.Join(dir, "missing") + "=disks"} {
		if _, errOut := mustPodvol(t, exitUsage, "run-node", "-f", dir, "--fake", "--discover", value); !strings.Contains(errOut, "--discover") {
			t.Errorf("%s: %s", value, errOut)
		}
	}
}
