package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/util/seal"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/standalone"
)

// After a claim's volume could not be deleted, the claim is gone. Deleting it again
// names the command that ends that, which then does.
func TestAFailedReclaimCanBeEnded(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root, dir := filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "kept")
		file := manifestFile(t, strings.ReplaceAll(claimsOfTwoKinds, "DIR", dir))
		at := func(code int, args ...string) (out, errOut string) {
			t.Helper()
			return mustPodvol(t, code, append(args, "--root-dir", root)...)
		}
		at(exitOK, "mount", "-f", file)
		at(exitOK, "unmount", "--all")
		names, _ := at(exitOK, "pv", "-o", "name")
		made := strings.TrimPrefix(strings.Fields(strings.ReplaceAll(names, "persistentvolume/kept\n", ""))[0], "persistentvolume/")
		storage := filepath.Join(root, "podvol", "volumes", made)
		// A link is not what podvol made, and not deleted.
		must(t, os.Rename(storage, storage+"-away"))
		must(t, os.Symlink(dir, storage))

		if _, errOut := at(exitFailed, "pvc", "delete", "shop/orders"); !strings.Contains(errOut, made) {
			t.Errorf("stderr: %s", errOut)
		}
		if names, _ := at(exitOK, "pvc", "-A", "-o", "name"); strings.Contains(names, "orders") {
			t.Fatalf("the claim is still there, so that this shows nothing: %s", names)
		}
		for range 2 {
			_, errOut := at(exitFailed, "pvc", "delete", "shop/orders")
			if want := "pv delete " + made + " --root-dir " + root; !strings.Contains(errOut, want) || !strings.Contains(errOut, storage) {
				t.Errorf("stderr has no %q: %s", want, errOut)
			}
		}
		must(t, os.Remove(storage))
		must(t, os.Rename(storage+"-away", storage))
		at(exitOK, "pv", "delete", made)
		if _, err := os.Stat(storage); !os.IsNotExist(err) {
			t.Errorf("the storage: %v", err)
		}
		if _, errOut := at(exitFailed, "pvc", "delete", "shop/orders"); strings.Contains(errOut, "pv delete") {
			t.Errorf("stderr: %s", errOut)
		}
	})
}

// What cannot be read is not gone: no record says then that anything was deleted.
func TestADeletionThatCannotLookSaysSo(t *testing.T) {
	claim := examplePVC("shop", "data", func(c *v1.PersistentVolumeClaim) { c.UID, c.Spec.VolumeName = "uid-data", "pv" })
	root := recorded(t, claim, examplePV("pv", "1Gi", func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: "data", UID: claim.UID}
	}))
	before := readStored(root)
	if before.damaged != nil || len(before.volumesOf(before.claims[0])) != 1 {
		t.Fatalf("%+v", before)
	}
	for _, name := range []string{"claim~shop~data.json", "volume~pv.json"} {
		for how, spoil := range map[string]func(path string) error{
			"unreadable": func(path string) error { return os.Mkdir(path, 0o700) },
			"flipped": func(path string) error {
				return os.WriteFile(path, seal.Add([]byte(`{"schemaVersion":2}`+"\n")), 0o600)
			},
		} {
			path := filepath.Join(standalone.ClaimsDir(root), name)
			sound, err := os.ReadFile(path)
			must(t, err)
			must(t, os.Remove(path))
			must(t, spoil(path))
			var out, errOut strings.Builder
			d := &deletion{streams: streams{out: &out, err: &errOut}, options: changeOptions{rootDir: root}, before: before}
			err = d.report([]volume.ObjectRef{volume.NewObjectRef(kubectlget.ClaimKind.Kind, "shop", "data"), volume.NewObjectRef(kubectlget.VolumeKind.Kind, "", "pv")})
			if err == nil || !strings.Contains(err.Error(), "cannot check which volumes are deleted") || out.Len()+errOut.Len() > 0 {
				t.Errorf("%s, %s: %v\nstdout: %s\nstderr: %s", name, how, err, &out, &errOut)
			}
			must(t, os.Remove(path))
			must(t, os.WriteFile(path, sound, 0o600))
		}
	}
}

// A claim is gone, and its volume has not become what its reclaim policy says: that
// is a failure, which names the command that goes on.
func TestAnUnfinishedReclaimIsAFailure(t *testing.T) {
	const deleted, emptied, kept = v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRecycle, v1.PersistentVolumeReclaimRetain
	for _, tc := range []struct {
		policy     v1.PersistentVolumeReclaimPolicy
		phase      v1.PersistentVolumePhase
		unfinished bool
	}{
		{deleted, v1.VolumeBound, true}, {deleted, v1.VolumeReleased, true}, {deleted, v1.VolumeFailed, true},
		{emptied, v1.VolumeBound, true}, {emptied, v1.VolumeReleased, true}, {emptied, v1.VolumeFailed, true}, {emptied, v1.VolumeAvailable, false},
		{kept, v1.VolumeBound, true}, {kept, v1.VolumeReleased, false},
	} {
		claim := examplePVC("shop", "data", func(c *v1.PersistentVolumeClaim) { c.UID = "uid-data" })
		pv := examplePV("pv", "1Gi", func(pv *v1.PersistentVolume) {
			pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: "data", UID: claim.UID}
			pv.Spec.PersistentVolumeReclaimPolicy, pv.Status.Phase, pv.Status.Message = tc.policy, tc.phase, ""
		})
		before := readStored(recorded(t, claim, pv.DeepCopy()))
		pv.ResourceVersion = ""
		var out, errOut strings.Builder
		d := &deletion{streams: streams{out: &out, err: &errOut}, options: changeOptions{rootDir: recorded(t, pv)}, before: before}
		err := d.report([]volume.ObjectRef{volume.NewObjectRef(kubectlget.ClaimKind.Kind, "shop", "data")})
		if (err != nil) != tc.unfinished || err != nil && tc.policy == deleted && !strings.Contains(err.Error(), "pv delete pv") {
			t.Errorf("%s, %s: %v", tc.policy, tc.phase, err)
		}
	}
}
