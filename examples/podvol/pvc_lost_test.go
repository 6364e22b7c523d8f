package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/standalone"
)

// fsckAndStatus run fsck and status, the latter in two formats, on a root directory,
// and return what each prints of errors.
func fsckAndStatus(t *testing.T, code int, root string) (said []string) {
	t.Helper()
	for _, args := range [][]string{{"fsck"}, {"status"}, {"status", "-o", "json"}} {
		_, errOut := mustPodvol(t, code, append(args, "--root-dir", root)...)
		said = append(said, errOut)
	}
	return said
}

// Whoever deletes a claim whose volume nobody knows any more is not told that its
// data has gone; fsck says so before.
func TestAClaimThatHasLostItsVolumeSaysThatItsDataStays(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := recorded(t, examplePVC("shop", "data", func(c *v1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase = "lost", v1.ClaimLost
			c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		}))
		const want = `the record of its volume "lost" is lost`
		for _, errOut := range fsckAndStatus(t, exitFailed, root) {
			if !strings.Contains(errOut, "shop/data: "+want) {
				t.Error(errOut)
			}
		}
		out, errOut := mustPodvol(t, exitOK, "pvc", "delete", "shop/data", "--root-dir", root)
		if !strings.Contains(out, "deleted from shop namespace") || !strings.Contains(errOut, want) || !strings.Contains(errOut, "nothing of it is deleted") {
			t.Errorf("stdout %q, stderr %q", out, errOut)
		}
		fsckAndStatus(t, exitOK, root)
	})
}

// Claims whose whole directory is gone are missed by fsck and status, until it is back, or
// a person says that they are lost.
func TestAllClaimsAreLost(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		fsckAndStatus(t, exitOK, root)
		mustPodvol(t, exitOK, "mount", "-f", "../../testdata/claims/dynamic.yaml", "--root-dir", root)
		fsckAndStatus(t, exitOK, root)
		claims, saved := standalone.ClaimsDir(root), filepath.Join(t.TempDir(), "saved")
		must(t, os.Rename(claims, saved))
		for _, errOut := range fsckAndStatus(t, exitFailed, root) {
			if !strings.Contains(errOut, "the records of all claims are lost") || !strings.Contains(errOut, "backup") {
				t.Error(errOut)
			}
		}
		for _, words := range [][]string{
			{"mount", "-f", "../../testdata/claims/dynamic.yaml"},
			{"run", "--root-dir", root, "-f", "../../testdata/claims/dynamic.yaml", "--", "true"},
			{"pvc"}, {"pv"}, {"pvc", "data"}, {"pvc", "delete", "data"}, {"pv", "delete", "any"},
		} {
			exit, _, errOut := podvol(t, "", append(words, "--root-dir", root)...)
			if exit == exitOK || !strings.Contains(errOut, "the records of all claims are lost") || strings.Contains(errOut, "No resources") {
				t.Errorf("podvol %s: exit %d, %s", words, exit, errOut)
			}
		}
		if _, err := os.Lstat(claims); err == nil {
			t.Error("a command made the claims anew")
		}
		must(t, os.Mkdir(claims, 0o700)) // as empty as a directory at which a disk is missing
		mustPodvol(t, exitFailed, "mount", "-f", "../../testdata/claims/dynamic.yaml", "--root-dir", root)
		fsckAndStatus(t, exitFailed, root)
		must(t, os.Remove(claims))
		must(t, os.Rename(saved, claims))
		fsckAndStatus(t, exitOK, root)
		mustPodvol(t, exitOK, "unmount", "-f", "../../testdata/claims/dynamic.yaml", "--root-dir", root)
		must(t, os.RemoveAll(claims))
		fsckAndStatus(t, exitFailed, root)
		must(t, os.Remove(filepath.Join(root, "podvol", "claims.made")))
		fsckAndStatus(t, exitOK, root)
	})
}

// A volume that a pod has mounted, and of which neither the claim nor the volume is on
// record any more, is named until it is on record again, or unmounted.
func TestAMountedVolumeIsMissed(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		mustPodvol(t, exitOK, "mount", "-f", "../../testdata/claims/dynamic.yaml", "--root-dir", root)
		fsckAndStatus(t, exitOK, root)
		claims, saved := standalone.ClaimsDir(root), t.TempDir()
		record, err := os.ReadFile(filepath.Join(claims, "claim~lab~cache.json"))
		must(t, err)
		_, after, _ := strings.Cut(string(record), `"volumeName":"`)
		volume, _, _ := strings.Cut(after, `"`)
		lost := []string{"claim~lab~cache.json", "volume~" + volume + ".json"}
		for _, name := range lost {
			must(t, os.Rename(filepath.Join(claims, name), filepath.Join(saved, name)))
		}
		for _, errOut := range fsckAndStatus(t, exitFailed, root) {
			if !strings.Contains(errOut, volume) || !strings.Contains(errOut, "lab/worker") || !strings.Contains(errOut, "lab/cache") || strings.Contains(errOut, "archive") {
				t.Error(errOut)
			}
		}
		for _, name := range lost {
			must(t, os.Rename(filepath.Join(saved, name), filepath.Join(claims, name)))
		}
		fsckAndStatus(t, exitOK, root)
		mustPodvol(t, exitOK, "unmount", "-f", "../../testdata/claims/dynamic.yaml", "--root-dir", root)
		for _, name := range lost {
			must(t, os.Remove(filepath.Join(claims, name)))
		}
		fsckAndStatus(t, exitOK, root)
	})
}

// A record that was damaged is found by fsck and status, by its name.
func TestDamagedRecordsOfClaimsAreFound(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := recorded(t, examplePVC("shop", "data", nil), examplePV("pv", "1Gi", nil))
		for _, name := range []string{"claim~shop~data.json", "volume~pv.json"} {
			path := filepath.Join(standalone.ClaimsDir(root), name)
			sound, err := os.ReadFile(path)
			must(t, err)
			flipped := []byte(strings.Replace(string(sound), `Gi"`, `Mi"`, 1))
			must(t, os.WriteFile(path, flipped, 0o600))
			for _, errOut := range fsckAndStatus(t, exitFailed, root) {
				if !strings.Contains(errOut, path) || !strings.Contains(errOut, "checksum") {
					t.Errorf("%s: %s", name, errOut)
				}
			}
			must(t, os.WriteFile(path, sound, 0o600))
		}
		fsckAndStatus(t, exitOK, root)
	})
}

// A claim whose file is gone while a volume is bound to it is named by fsck and
// status, until it has the volume again or nobody wants that.
func TestAClaimThatHasLostItsFileIsNamed(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := recorded(t, examplePVC("shop", "data", nil), examplePV("pv", "1Gi", func(pv *v1.PersistentVolume) {
			pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: "data", UID: "1"}
			pv.Status.Phase = v1.VolumeBound
		}))
		fsckAndStatus(t, exitOK, root)
		path := filepath.Join(standalone.ClaimsDir(root), "claim~shop~data.json")
		must(t, os.Remove(path))
		for _, errOut := range fsckAndStatus(t, exitFailed, root) {
			if !strings.Contains(errOut, "shop/data") || !strings.Contains(errOut, path) || !strings.Contains(errOut, `"pv"`) {
				t.Error(errOut)
			}
		}
		must(t, os.Remove(filepath.Join(standalone.ClaimsDir(root), "volume~pv.json")))
		fsckAndStatus(t, exitOK, root)
	})
}

// When the records of a claim and of its volume are lost, the claim is not given new,
// empty storage beside its data.
func TestAClaimThatIsForgottenIsNotProvisionedAnew(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		file := manifestFile(t, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: made}
provisioner: kubernetes.io/host-path
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: shop}
spec: {storageClassName: made, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`)
		mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		made, err := filepath.Glob(filepath.Join(root, "podvol", "volumes", "pvc-*"))
		if err != nil || len(made) != 1 {
			t.Fatalf("%v, %v", made, err)
		}
		records, err := filepath.Glob(filepath.Join(standalone.ClaimsDir(root), "*~*.json"))
		if err != nil || len(records) != 2 {
			t.Fatalf("%v, %v", records, err)
		}
		for _, record := range records {
			must(t, os.Remove(record))
		}
		_, errOut := mustPodvol(t, exitFailed, "mount", "-f", file, "--root-dir", root)
		if !strings.Contains(errOut, "shop/data had a volume before: "+made[0]) {
			t.Errorf("stderr: %s", errOut)
		}
		if now, _ := filepath.Glob(filepath.Join(root, "podvol", "volumes", "pvc-*")); len(now) != 1 || now[0] != made[0] {
			t.Errorf("there is %v, and was %v", now, made)
		}
		must(t, os.Rename(made[0], filepath.Join(root, "looked-at")))
		mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}
