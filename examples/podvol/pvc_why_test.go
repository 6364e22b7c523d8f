package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/nodeagent/manifestdir"
	"github.com/podvol/podvol/volume/standalone"
)

const pendingClaim = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: slow, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

const slowClass = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: slow}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
`

// awaitWhy waits until podvol pvc says why the claim is pending, in these words.
func awaitWhy(t *testing.T, root, says string) {
	t.Helper()
	w, err := manifestdir.NewWatch(standalone.ClaimsDir(root))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	late := time.After(patience)
	for {
		_, errOut := mustPodvol(t, exitOK, "pvc", "--root-dir", root)
		if strings.Contains(errOut, says) {
			return
		}
		select {
		case <-w.Changed():
		case <-late:
			t.Fatalf("want %q:\n%s", says, errOut)
		}
	}
}

// What podvol run-node knows of a claim, podvol pvc says, also of classes, which
// are not recorded; and once that has ended, that it is a thing of the past.
func TestPVCSaysWhatRunNodeHasFound(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		n := runProcess(t, t.TempDir(), root)
		n.put("claim.yaml", pendingClaim)
		awaitStored(t, root, "applied", func(s recordedClaims) bool { return s.claims["data"] != nil })
		awaitWhy(t, root, "  default/data: the claim is not bound: storageclass.storage.k8s.io \"slow\" not found; create it, or a volume of this class that fits\n")
		n.put("class.yaml", slowClass)
		awaitWhy(t, root, "  default/data: the claim waits for its first consumer: create a pod that uses it\n")
		n.stop()
		awaitWhy(t, root, "create a pod that uses it (as it was ")
	})
}
