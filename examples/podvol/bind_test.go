package main

import (
	"errors"
	"fmt"
	"testing"

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
