package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/manifest"
	"github.com/podvol/podvol/volume/persistentvolume/embedded"
	"github.com/podvol/podvol/volume/standalone"
)

// A manifest that was written down from a cluster says itself that its claim is
// bound, which the node would believe; so one that says it of another's volume is
// refused.
func TestRecordsOutrankManifestsThatSayBound(t *testing.T) {
	root := t.TempDir()
	mounter := fakemount.New()
	defer mounter.Close()
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
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: %[1]s}}]
`, tc.claim))
		if err != nil {
			t.Fatal(err)
		}
		config := standalone.ClaimsConfig{RootDir: root, Node: standalone.NodeConfig{NodeName: "node1", Mounter: mounter}, Store: objects.NewStore(), Manager: "test"}
		if _, err := standalone.BindClaims(t.Context(), config, set, set.Pods(), time.Minute); errors.Is(err, claimbinding.ErrElsewhere) != tc.refused || (err != nil) != tc.refused {
			t.Errorf("%s: err = %v, want refused: %v", tc.claim, err, tc.refused)
		}
	}
}

// A claim keeps the volume that it once had, whatever manifests say later.
func TestBindingOutlivesTheManifest(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dirs := map[string]string{"first": t.TempDir(), "second": t.TempDir()}
		manifestOf := func(pv string) string {
			return manifestFile(t, `
apiVersion: v1
kind: PersistentVolume
metadata: {name: `+pv+`}
spec: {capacity: {storage: 1Gi}, accessModes: [ReadWriteOnce], hostPath: {path: `+dirs[pv]+`}}
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
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
`)
		}
		root := filepath.Join(t.TempDir(), "root")
		for _, pv := range []string{"first", "second"} {
			out, _ := mustPodvol(t, exitOK, "mount", "-f", manifestOf(pv), "--root-dir", root, "-o", "json")
			if !strings.Contains(out, dirs["first"]) {
				t.Errorf("with the manifest of volume %s:\n%s", pv, out)
			}
			mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		}
		// Where the data lies cannot be changed under the claim, and then nothing
		// is mounted.
		dirs["first"] = t.TempDir()
		_, errOut := mustPodvol(t, exitFailed, "mount", "-f", manifestOf("first"), "--root-dir", root)
		if !strings.Contains(errOut, "PersistentVolume first: spec.hostPath cannot become") || strings.Contains(errOut, "To unmount") {
			t.Errorf("stderr: %s", errOut)
		}
	})
}

// Each command is a process of its own; what is made for a claim is found again,
// and stays when the pod's volumes are unmounted.
func TestMountMakesWhatTheClassMakes(t *testing.T) {
	file := manifestFile(t, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: share}
provisioner: kubernetes.io/nfs
parameters: {server: 10.0.0.1, share: /export}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: share, accessModes: [ReadWriteMany], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
`)
	out, errOut := mustPodvol(t, exitOK, "mount", "--fake", "-f", file)
	if !strings.Contains(out, "10.0.0.1:/export/pvc-") || !strings.Contains(errOut, "10.0.0.1:/export "+cmp.Or(defaultRootDir(), systemRootDir)+"/plugins/kubernetes.io/nfs/") {
		t.Errorf("%s\n%s", out, errOut)
	}
}

// Two processes must not give one volume away twice; who is kept waiting is told
// by whom.
func TestClaimsOfAnotherProcess(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	mounter := fakemount.New()
	defer mounter.Close()
	config := standalone.ClaimsConfig{RootDir: root, Node: standalone.NodeConfig{NodeName: "node1", Mounter: mounter}, LockTimeout: patience}
	first, err := standalone.OpenClaims(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	hurried := config
	hurried.LockTimeout = 50 * time.Millisecond
	_, err = standalone.OpenClaims(t.Context(), hurried)
	if !errors.Is(err, embedded.ErrBusy) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("err = %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := standalone.OpenClaims(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// A disk of one node is not for a pod on another, which is said.
func TestMountOfAnotherNodesDisk(t *testing.T) {
	file := manifestFile(t, `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec:
  storageClassName: local
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  local: {path: `+t.TempDir()+`}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [node1]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {storageClassName: local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
`)
	mustPodvol(t, exitOK, "mount", "--fake", "-f", file, "--node", "node1")
	if _, errOut := mustPodvol(t, exitFailed, "mount", "--fake", "-f", file, "--node", "node2"); !strings.Contains(errOut, "not reachable from this node (disk: not on node2)") {
		t.Errorf("stderr: %s", errOut)
	}
}
