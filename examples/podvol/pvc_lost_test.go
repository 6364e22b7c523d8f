package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/nstest"
)

// Whoever deletes a claim whose volume nobody knows any more is not told that its
// data has gone; fsck says so before.
func TestAClaimThatHasLostItsVolumeSaysThatItsDataStays(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		root := recorded(t, examplePVC("shop", "data", func(c *v1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase = "lost", v1.ClaimLost
			c.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		}))
		const want = `the record of its volume "lost" is lost`
		if _, errOut := mustPodvol(t, exitFailed, "fsck", "--root-dir", root); !strings.Contains(errOut, "shop/data: "+want) {
			t.Errorf("fsck: %s", errOut)
		}
		out, errOut := mustPodvol(t, exitOK, "pvc", "delete", "shop/data", "--root-dir", root)
		if !strings.Contains(out, "deleted from shop namespace") || !strings.Contains(errOut, want) || !strings.Contains(errOut, "nothing of it is deleted") {
			t.Errorf("stdout %q, stderr %q", out, errOut)
		}
		mustPodvol(t, exitOK, "fsck", "--root-dir", root)
	})
}

// A record that was damaged is found by fsck, by its name.
func TestFsckFindsDamagedRecordsOfClaims(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		root := recorded(t, examplePVC("shop", "data", nil), examplePV("pv", "1Gi", nil))
		for _, name := range []string{"claim~shop~data.json", "volume~pv.json"} {
			path := filepath.Join(clusterDir(root), name)
			sound, err := os.ReadFile(path)
			must(t, err)
			flipped := []byte(strings.Replace(string(sound), `Gi"`, `Mi"`, 1))
			must(t, os.WriteFile(path, flipped, 0o600))
			if _, errOut := mustPodvol(t, exitFailed, "fsck", "--root-dir", root); !strings.Contains(errOut, path) || !strings.Contains(errOut, "checksum") {
				t.Errorf("%s: %s", name, errOut)
			}
			must(t, os.WriteFile(path, sound, 0o600))
		}
		mustPodvol(t, exitOK, "fsck", "--root-dir", root)
	})
}
