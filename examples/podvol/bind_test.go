package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/manifest"
)

// A manifest that was written down from a cluster says itself that its claim is
// bound, which the node believes; so a claim that the ledger refuses must not
// reach the node.
func TestRecordsOutrankManifestsThatSayBound(t *testing.T) {
	root := t.TempDir()
	for _, tc := range []struct {
		claim   string
		refused bool
	}{{"first", false}, {"second", true}, {"first", false}} {
		set, err := manifest.Loader{NodeName: "node1"}.Decode("test", fmt.Appendf(nil, `
apiVersion: v1
kind: PersistentVolume
metadata: {name: data}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  nfs: {server: 127.0.0.1, path: /}
  claimRef: {namespace: default, name: %[1]s, uid: uid-%[1]s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %[1]s, uid: uid-%[1]s}
spec: {accessModes: [ReadWriteMany], volumeName: data, storageClassName: "", resources: {requests: {storage: 1Gi}}}
status: {phase: Bound}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: %[1]s}}]
`, tc.claim))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := bindClaims(t.Context(), root, set, set.Pods()); errors.Is(err, volume.ErrBoundElsewhere) != tc.refused || (err != nil) != tc.refused {
			t.Errorf("%s: err = %v, want refused: %v", tc.claim, err, tc.refused)
		}
	}
}

// A claim keeps the volume that it once had; who wants it otherwise is told
// which file to remove.
func TestBindingOutlivesTheManifest(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		manifestOf := func(pv string) string {
			return manifestFile(t, `
apiVersion: v1
kind: PersistentVolume
metadata: {name: `+pv+`}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: `+t.TempDir()+`}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
`)
		}
		root := filepath.Join(t.TempDir(), "root")
		mustPodvol(t, exitOK, "mount", "-f", manifestOf("first"), "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		_, errOut := mustPodvol(t, exitFailed, "mount", "-f", manifestOf("second"), "--root-dir", root)
		record := filepath.Join(root, "podvol", "bindings", "first.json")
		if !strings.Contains(errOut, record) || strings.Contains(errOut, "To unmount") {
			t.Fatalf("stderr: %s", errOut)
		}
		if err := os.Remove(record); err != nil {
			t.Fatal(err)
		}
		mustPodvol(t, exitOK, "mount", "-f", manifestOf("second"), "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}
