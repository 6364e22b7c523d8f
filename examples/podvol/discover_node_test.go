package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/nstest"
)

// A disk that is mounted while run-node runs is what a pod has waited for.
func TestRunNodeDiscoversDisks(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		disks, root := t.TempDir(), filepath.Join(t.TempDir(), "root")
		n := runProcess(t, t.TempDir(), root, "--discover", disks+"=disks")
		n.put("db.yaml", "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: disks}\nprovisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n"+
			"---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: shop}\n"+
			"spec: {accessModes: [ReadWriteOnce], storageClassName: disks, resources: {requests: {storage: 4Mi}}}\n---\n"+
			podNamed("db", "{name: data, persistentVolumeClaim: {claimName: data}}"))
		n.hears("pods: 1")
		path, mounter := filepath.Join(disks, "ssd"), mount.New(mount.Config{})
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

func TestDiscoverFlag(t *testing.T) {
	dir := t.TempDir()
	for _, value := range []string{dir, dir + "=", "=disks", filepath.Join(dir, "missing") + "=disks"} {
		if _, errOut := mustPodvol(t, exitUsage, "run-node", "-f", dir, "--fake", "--discover", value); !strings.Contains(errOut, "--discover") {
			t.Errorf("%s: %s", value, errOut)
		}
	}
}
