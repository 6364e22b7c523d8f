package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
)

const claimsOfTwoKinds = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: made}
provisioner: kubernetes.io/host-path
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: kept}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: static
  hostPath: {path: DIR, type: DirectoryOrCreate}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: orders, namespace: shop}
spec: {storageClassName: made, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: static, namespace: shop}
spec: {storageClassName: static, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: kept, mountPath: /kept}, {name: orders, mountPath: /orders}, {name: static, mountPath: /static}]}]
  volumes:
  - {name: kept, emptyDir: {}}
  - {name: orders, persistentVolumeClaim: {claimName: orders}}
  - {name: static, persistentVolumeClaim: {claimName: static}}
`

// A user's life with claims: what is mounted is listed and refused, what is not
// is deleted, and its volume treated as its reclaim policy says.
func TestClaimsAreDeletedByHand(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root, dir := filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "kept")
		file := manifestFile(t, strings.ReplaceAll(claimsOfTwoKinds, "DIR", dir))
		at := func(code int, args ...string) (out, errOut string) {
			t.Helper()
			return mustPodvol(t, code, append(args, "--root-dir", root)...)
		}
		at(exitOK, "mount", "-f", file)
		out, errOut := at(exitOK, "pvc", "-n", "shop", "-o", "wide")
		if strings.Count(out, " Bound ") != 2 || strings.Count(out, " web") != 2 || errOut != "" {
			t.Errorf("stdout:\n%s\nstderr:\n%s", out, errOut)
		}
		out, _ = at(exitOK, "pv", "-o", "name")
		made := strings.TrimPrefix(strings.Fields(strings.ReplaceAll(out, "persistentvolume/kept\n", ""))[0], "persistentvolume/")
		storage := filepath.Join(root, "podvol", "volumes", made)
		if err := os.WriteFile(filepath.Join(storage, "order"), nil, 0o600); err != nil {
			t.Fatal(err)
		}

		for _, dryRun := range []string{"--dry-run=true", "--dry-run=false"} {
			if _, errOut := at(exitFailed, "pvc", "delete", "shop/orders", dryRun); !strings.Contains(errOut, "in use by pod shop/web") {
				t.Errorf("%s: stderr: %s", dryRun, errOut)
			}
			if _, errOut := at(exitFailed, "pv", "delete", "kept", dryRun); !strings.Contains(errOut, "cannot be deleted") && !strings.Contains(errOut, "in use") {
				t.Errorf("%s: stderr: %s", dryRun, errOut)
			}
		}
		at(exitOK, "unmount", "--all")
		if _, errOut := at(exitFailed, "pv", "delete", "kept"); !strings.Contains(errOut, "belongs to PersistentVolumeClaim shop/static; delete that first") {
			t.Errorf("stderr: %s", errOut)
		}

		out, errOut = at(exitOK, "pvc", "delete", "-n", "shop", "orders", "shop/static", "--dry-run")
		if strings.Count(out, "(dry run)") != 2 || !strings.Contains(errOut, "data deleted: "+storage) || !strings.Contains(errOut, dir+", would stay") {
			t.Errorf("stdout: %s\nstderr: %s", out, errOut)
		}
		if _, err := os.Stat(filepath.Join(storage, "order")); err != nil {
			t.Error(err)
		}
		out, errOut = at(exitOK, "pvc", "delete", "shop/orders", "shop/static")
		if want := "persistentvolumeclaim \"orders\" deleted from shop namespace\npersistentvolumeclaim \"static\" deleted from shop namespace\n"; out != want ||
			!strings.Contains(errOut, "data deleted: "+storage) || !strings.Contains(errOut, "Released and keeps its data, "+dir) {
			t.Errorf("stdout: %s\nstderr: %s", out, errOut)
		}
		if _, err := os.Stat(storage); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the storage: %v", err)
		}
		if _, errOut := at(exitFailed, "pvc", "delete", "shop/orders"); !strings.Contains(errOut, "not found") {
			t.Errorf("stderr: %s", errOut)
		}

		if out, _ := at(exitOK, "pv"); !strings.Contains(out, "Released") {
			t.Errorf("stdout: %s", out)
		}
		if _, errOut := at(exitUsage, "pv", "release", "kept"); !strings.Contains(errOut, "--yes") || !strings.Contains(errOut, "shop/static") {
			t.Errorf("stderr: %s", errOut)
		}
		// Its manifest may offer it again, with the same result.
		if _, errOut := at(exitUsage, "pv", "delete", "kept"); !strings.Contains(errOut, "--yes") || !strings.Contains(errOut, "shop/static has left") {
			t.Errorf("stderr: %s", errOut)
		}
		if _, errOut := at(exitOK, "pv", "delete", "kept", "--dry-run"); !strings.Contains(errOut, "another claim could have it") {
			t.Errorf("stderr: %s", errOut)
		}
		at(exitOK, "pv", "release", "kept", "--yes")
		if out, _ := at(exitOK, "pv"); !strings.Contains(out, "Available") || strings.Contains(out, "shop/static") {
			t.Errorf("stdout: %s", out)
		}
		if _, errOut := at(exitFailed, "pv", "release", "kept", "--yes"); !strings.Contains(errOut, "no claim has it") {
			t.Errorf("stderr: %s", errOut)
		}
		out, errOut = at(exitOK, "pv", "delete", "kept")
		if out != "persistentvolume \"kept\" deleted\n" || !strings.Contains(errOut, "its data stays: "+dir) {
			t.Errorf("stdout: %s\nstderr: %s", out, errOut)
		}
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	})
}

func TestDeletionsAreRefusedWhileANodeRuns(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := recorded(t, exampleClaims()[1])
		n := runProcess(t, t.TempDir(), root)
		n.hears(" of 0 pods")
		_, errOut := mustPodvol(t, exitFailed, "pvc", "delete", "shop/data", "--root-dir", root)
		if !strings.Contains(errOut, "in use by process") || !strings.Contains(errOut, "take out of its manifests") {
			t.Errorf("stderr: %s", errOut)
		}
		if out, _ := mustPodvol(t, exitOK, "pvc", "-A", "--root-dir", root); !strings.Contains(out, "data") {
			t.Errorf("stdout: %s", out)
		}
		n.stop()
	})
}

func TestChangesNeedNames(t *testing.T) {
	for _, args := range [][]string{{"pvc", "delete"}, {"pv", "delete"}, {"pv", "release"}, {"pv", "release", "a", "b", "--yes"}, {"pvc", "delete", "a/b", "--timeout", "0s"}} {
		mustPodvol(t, exitUsage, append(args, "--root-dir", t.TempDir())...)
	}
	for says, args := range map[string][]string{"persistentvolumes \"a\" not found": {"pv", "release", "a", "--yes"}, "persistentvolumeclaims \"a\" not found": {"pvc", "delete", "a"}} {
		root := filepath.Join(t.TempDir(), "root")
		if _, errOut := mustPodvol(t, exitFailed, append(args, "--root-dir", root)...); !strings.Contains(errOut, says) {
			t.Errorf("%v: %s", args, errOut)
		}
		if _, err := os.Stat(root); !os.IsNotExist(err) {
			t.Errorf("%v made the root directory: %v", args, err)
		}
	}
}

// Of data that somebody else has deleted before nobody says that it is deleted now.
func TestOfMissingDataNobodySaysThatItIsDeleted(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		file := manifestFile(t, strings.ReplaceAll(claimsOfTwoKinds, "DIR", filepath.Join(t.TempDir(), "kept")))
		mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		made, err := filepath.Glob(filepath.Join(root, "podvol", "volumes", "pvc-*"))
		if err != nil || len(made) != 1 {
			t.Fatal(made, err)
		}
		if err := os.RemoveAll(made[0]); err != nil {
			t.Fatal(err)
		}
		out, errOut := mustPodvol(t, exitOK, "pvc", "delete", "shop/orders", "--root-dir", root)
		if !strings.Contains(out, "deleted") || !strings.Contains(errOut, "was not there any more") || strings.Contains(errOut, "its data deleted") {
			t.Errorf("stdout: %s\nstderr: %s", out, errOut)
		}
	})
}
