package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/util/testenv/nstest"
)

// madeForRuns is a pod whose claim gets a directory of its own made.
const madeForRuns = `
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: dirs, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/host-path
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
`

// What is made for a claim is there for the next run, and runs that begin at the
// same time agree on it.
func TestRunsShareWhatIsMadeForTheirClaim(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base, volumes, file := t.TempDir(), t.TempDir(), manifestFile(t, madeForRuns)
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				code, out, errOut := podvol(t, "", "run", "-f", file, "--root-dir", base, "--volume-dir", volumes, "--", "sh", "-c", fmt.Sprintf("touch /v/%d", i))
				if code != 0 {
					t.Errorf("exit code %d\nstdout: %s\nstderr: %s", code, out, errOut)
				}
			})
		}
		all.Wait()
		out, _ := mustPodvol(t, exitOK, "run", "-f", file, "--root-dir", base, "--volume-dir", volumes, "--", "ls", "/v")
		made, err := filepath.Glob(filepath.Join(volumes, "pvc-*"))
		if out != "0\n1\n2\n3\n" || err != nil || len(made) != 1 {
			t.Errorf("%q, made %v, %v", out, made, err)
		}
		assertNothingMountedBelow(t, base)
	})
}

// The group of a PersistentVolume is the runtime's to add.
func TestRunTellsOfTheGroupsOfVolumes(t *testing.T) {
	options, want := "", ""
	if kubeapi.Set(new(v1.VolumeMount), "BindMountOptions", []string{}) { // what this minor of k8s.io/api has
		options, want = ", bindMountOptions: [noexec]", "noexec"
	}
	nstest.Run(t, func(t *testing.T) {
		file := manifestFile(t, `
apiVersion: v1
kind: PersistentVolume
metadata: {name: shared, annotations: {pv.beta.kubernetes.io/gid: "4321"}}
spec: {accessModes: [ReadWriteOnce], capacity: {storage: 1Gi}, storageClassName: "", hostPath: {path: `+t.TempDir()+`}}
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
  containers: [{name: c, image: i, volumeMounts: [{name: v, mountPath: /v`+options+`}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
`)
		out, errOut := mustPodvol(t, exitOK, "run", "-f", file, "--root-dir", t.TempDir(), "--", "grep", " /v ", "/proc/self/mountinfo")
		if !strings.Contains(errOut, "groups [4321]") || !strings.Contains(errOut, "supplementalGroups") {
			t.Errorf("stderr: %s", errOut)
		}
		if !strings.Contains(out, want) {
			t.Errorf("/v is mounted without what its volumeMount asks for: %s", out)
		}
	})
}

func TestRunMakesVolumesForAnOrdinaryUser(t *testing.T) {
	r := asOrdinaryUser(t)
	r.run(t, 0, "run", "-f", openFile(t, madeForRuns), "--", "sh", "-c", "echo kept > /v/file")
	out, _ := r.run(t, 0, "run", "-f", openFile(t, madeForRuns), "--", "cat", "/v/file")
	if out != "kept\n" {
		t.Errorf("%q", out)
	}
	made, err := filepath.Glob(filepath.Join(r.base(), "podvol", "volumes", "pvc-*"))
	if err != nil || len(made) != 1 {
		t.Errorf("made %v, %v", made, err)
	}
}

// --volume-dir reaches the process that podvol starts in the user's namespace.
func TestRunPassesVolumeDirsOn(t *testing.T) {
	args := strings.Join(runOptions{volumes: []string{"/a", "/b"}}.args(), " ")
	if !strings.HasSuffix(args, "--volume-dir /a --volume-dir /b --") {
		t.Errorf("args: %s", args)
	}
}
