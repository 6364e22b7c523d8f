package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume/standalone"
)

// ephemeralForRuns is a pod with a directory that is made for it alone.
const ephemeralForRuns = `
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
  containers: [{name: c, image: i, volumeMounts: [{name: scratch, mountPath: /e}]}]
  volumes:
  - name: scratch
    ephemeral: {volumeClaimTemplate: {spec: {storageClassName: dirs, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}
`

// assertNoClaims checks that no claim, volume or directory made for one is left.
func assertNoClaims(t *testing.T, root string, volumeDirs ...string) {
	t.Helper()
	found := readStored(root)
	if found.damaged != nil || len(found.claims)+len(found.volumes) > 0 {
		t.Errorf("left: %v, %v, %v", found.claims, found.volumes, found.damaged)
	}
	if made := madeBelow(t, append(volumeDirs, filepath.Join(root, "podvol", "volumes"))...); len(made) > 0 {
		t.Errorf("left: %v", made)
	}
}

func madeBelow(t *testing.T, dirs ...string) (all []string) {
	t.Helper()
	for _, dir := range dirs {
		made, err := filepath.Glob(filepath.Join(dir, "pvc-*"))
		must(t, err)
		all = append(all, made...)
	}
	return all
}

// The claim of an ephemeral volume, and its data, go when its pod is unmounted.
func TestUnmountDeletesTheClaimsOfEphemeralVolumes(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root, volumes, file := t.TempDir(), t.TempDir(), manifestFile(t, ephemeralForRuns)
		for _, which := range [][]string{{"-f", file}, {"--pod", "default/web"}, {"--all"}} {
			mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root, "--volume-dir", volumes)
			made := madeBelow(t, volumes)
			if len(made) != 1 {
				t.Fatal(made)
			}
			must(t, os.WriteFile(filepath.Join(made[0], "f"), []byte("secret"), 0o600))
			mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root, "--volume-dir", volumes) // it is mounted, and stays so
			if now := madeBelow(t, volumes); len(now) != 1 || now[0] != made[0] {
				t.Errorf("made %v, then %v", made, now)
			}
			_, said := mustPodvol(t, exitOK, append([]string{"unmount", "--root-dir", root, "--volume-dir", volumes}, which...)...)
			if !strings.Contains(said, `persistentvolumeclaim "web-scratch" deleted from default namespace`) || !strings.Contains(said, "its data deleted") {
				t.Errorf("it said %s", said)
			}
			assertNoClaims(t, root, volumes)
			assertNothingMountedBelow(t, root)
		}
	})
}

// Storage that cannot be deleted is told of, with what deletes it, and the pod can
// be mounted again all the same.
func TestUnmountSaysWhatItCannotDelete(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root, volumes, file := t.TempDir(), t.TempDir(), manifestFile(t, ephemeralForRuns)
		mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root, "--volume-dir", volumes)
		_, said := mustPodvol(t, exitFailed, "unmount", "-f", file, "--root-dir", root)
		if !strings.Contains(said, "is still there") || !strings.Contains(said, "--volume-dir "+volumes) {
			t.Errorf("it said %s", said)
		}
		left := readStored(root)
		if len(left.claims) != 0 || len(left.volumes) != 1 {
			t.Fatalf("%v, %v", left.claims, left.volumes)
		}
		mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root, "--volume-dir", volumes)
		mustPodvol(t, exitOK, "unmount", "-f", file, "--root-dir", root, "--volume-dir", volumes)
		mustPodvol(t, exitOK, "pv", "delete", left.volumes[0].Name, "--root-dir", root, "--volume-dir", volumes)
		assertNoClaims(t, root, volumes)
	})
}

// What a run has put into an ephemeral volume the next one does not see, nor what
// one has left that was killed.
func TestRunsBeginWithEmptyEphemeralVolumes(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) { runsBeginEmpty(t, ownProcess(t)) })
}

func TestRunsOfAnOrdinaryUserBeginWithEmptyEphemeralVolumes(t *testing.T) {
	runsBeginEmpty(t, asOrdinaryUser(t))
}

func runsBeginEmpty(t *testing.T, r *runner) {
	file := openFile(t, ephemeralForRuns)
	for range 2 {
		if out, said := r.run(t, 0, "run", "-f", file, "--node", "here", "--", "sh", "-c", "ls /e; echo secret > /e/f"); out != "" || said != "" {
			t.Errorf("%q, %q", out, said)
		}
		assertNoClaims(t, r.base())
	}
	// A bound claim with data that nobody uses, as a killed run leaves it.
	c := r.command(t, "run", "-f", file, "--node", "here", "--", "sh", "-c", "echo secret > /e/f; echo ready; exec sleep 1000")
	out, err := c.StdoutPipe()
	must(t, err)
	must(t, c.Start())
	waitFor(t, out, "ready\n")
	must(t, c.Process.Kill())
	_, _ = io.Copy(io.Discard, out) // until all of it has ended
	_ = c.Wait()
	awaitUnlocked(t, onlyEntry(t, filepath.Join(standalone.ClaimsDir(r.base()), "users")))
	if left := readStored(r.base()); len(left.claims) != 1 || len(left.volumes) != 1 {
		t.Fatalf("%v, %v", left.claims, left.volumes)
	}
	if out, said := r.run(t, 0, "run", "-f", file, "--node", "here", "--", "ls", "/e"); out != "" || said != "" {
		t.Errorf("%q, %q", out, said)
	}
	assertNoClaims(t, r.base())
}

// Runs of one pod share its ephemeral volume, which goes with the last of them.
func TestRunsShareAnEphemeralVolume(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base, file := t.TempDir(), manifestFile(t, ephemeralForRuns)
		in, input := io.Pipe()
		output, out := io.Pipe()
		var said bytes.Buffer
		ended := make(chan int, 1)
		go func() {
			ended <- run(t.Context(), []string{"run", "-f", file, "--root-dir", base, "--", "sh", "-c", "echo shared > /e/f; echo ready; cat"},
				streams{in: in, out: out, err: &said})
			out.Close()
		}()
		waitFor(t, output, "ready\n")
		const stays = "stays: PersistentVolumeClaim default/web-scratch is in use by podvol run (process "
		seen, note := mustPodvol(t, exitOK, "run", "-f", file, "--root-dir", base, "--", "cat", "/e/f")
		if seen != "shared\n" || !strings.Contains(note, stays) {
			t.Errorf("%q, %q", seen, note)
		}
		if _, note := mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", base); !strings.Contains(note, stays) {
			t.Errorf("%q", note)
		}
		input.Close()
		if code := <-ended; code != 0 || said.Len() > 0 {
			t.Errorf("exit code %d: %s", code, &said)
		}
		assertNoClaims(t, base)
		assertNothingMountedBelow(t, base)
	})
}
