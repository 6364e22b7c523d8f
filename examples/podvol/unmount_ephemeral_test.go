package main

import (
	"strings"
	"testing"

	"github.com/podvol/podvol/util/nstest"
)

// The claim of an ephemeral volume stays when its pod is unmounted, and who does
// that is told how to get rid of it.
func TestUnmountNamesWhatEphemeralVolumesKeep(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		root := t.TempDir()
		file := manifestFile(t, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: dirs}
provisioner: kubernetes.io/host-path
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i}]
  volumes:
  - name: scratch
    ephemeral: {volumeClaimTemplate: {spec: {storageClassName: dirs, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}
`)
		mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root)
		_, said := mustPodvol(t, exitOK, "unmount", "-f", file, "--root-dir", root)
		if !strings.Contains(said, "pvc delete --root-dir "+root+" default/web-scratch\n") {
			t.Errorf("it said %s", said)
		}
		mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root) // it is there again
		mustPodvol(t, exitOK, "unmount", "-f", file, "--root-dir", root)
		mustPodvol(t, exitOK, "pvc", "delete", "default/web-scratch", "--root-dir", root)
		mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		assertNothingMountedBelow(t, root)
	})
}
