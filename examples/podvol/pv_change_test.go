package main

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/testenv/nstest"
)

func leftBy(name string, policy v1.PersistentVolumeReclaimPolicy, phase v1.PersistentVolumePhase) *v1.PersistentVolume {
	return examplePV(name, "1Gi", func(pv *v1.PersistentVolume) {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: "gone", UID: "gone"}
		pv.Spec.PersistentVolumeReclaimPolicy, pv.Status.Phase = policy, phase
	})
}

// What would not be released is not said to be.
func TestReleaseIsRehearsedByTheSameRules(t *testing.T) {
	root := recorded(t,
		leftBy("kept", v1.PersistentVolumeReclaimRetain, v1.VolumeReleased),
		leftBy("doomed", v1.PersistentVolumeReclaimDelete, v1.VolumeReleased),
		leftBy("bound", v1.PersistentVolumeReclaimRetain, v1.VolumeBound),
		leftBy("failed", v1.PersistentVolumeReclaimRecycle, v1.VolumeFailed),
		examplePV("free", "1Gi", nil))
	for name, want := range map[string]string{"doomed": "reclaim policy is Delete", "bound": "phase is Bound", "failed": "reclaim policy Recycle asks for has failed, maybe in part (): look at the data, then delete the volume", "free": "no claim has it"} {
		out, errOut := mustPodvol(t, exitFailed, "pv", "release", name, "--dry-run", "--root-dir", root)
		if out != "" || !strings.Contains(errOut, want) {
			t.Errorf("%s: stdout %q, stderr %q", name, out, errOut)
		}
	}
	out, errOut := mustPodvol(t, exitOK, "pv", "release", "kept", "--dry-run", "--root-dir", root)
	if out != "persistentvolume \"kept\" released (dry run)\n" || !strings.Contains(errOut, "shop/gone") {
		t.Errorf("stdout %q, stderr %q", out, errOut)
	}
}

// A claim's volume that somebody else has provisioned is not deleted here, and
// nobody is told that it is.
func TestDeletionIsRehearsedByTheSameRules(t *testing.T) {
	claim := examplePVC("shop", "data", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName, c.UID = "external", "claim" })
	foreign := func(name string) *v1.PersistentVolume {
		pv := leftBy(name, v1.PersistentVolumeReclaimDelete, v1.VolumeReleased)
		pv.Annotations = map[string]string{"pv.kubernetes.io/provisioned-by": "csi.example.com"}
		return pv
	}
	external := foreign("external")
	external.Spec.ClaimRef = &v1.ObjectReference{Namespace: "shop", Name: "data", UID: "claim"}
	other := examplePV("other", "1Gi", func(pv *v1.PersistentVolume) { // the claim has another one
		pv.Spec.ClaimRef, pv.Status.Phase = external.Spec.ClaimRef.DeepCopy(), v1.VolumeReleased
	})
	root := recorded(t, claim, external, other, foreign("left"))
	for args, want := range map[string]string{
		"pvc delete shop/data": "until csi.example.com, which has provisioned it, deletes it",
		"pv delete left":       "would stay there",
		"pv delete other":      "would stay there",
	} {
		_, errOut := mustPodvol(t, exitOK, append(strings.Fields(args), "--dry-run", "--root-dir", root)...)
		if !strings.Contains(errOut, want) || strings.Contains(errOut, "deleted:") {
			t.Errorf("%s: stderr %q", args, errOut)
		}
	}
	_, errOut := mustPodvol(t, exitFailed, "pv", "delete", "external", "--dry-run", "--root-dir", root)
	if !strings.Contains(errOut, "belongs to PersistentVolumeClaim shop/data; delete that first") {
		t.Errorf("stderr %q", errOut)
	}
}

// A volume whose storage cannot be deleted is got rid of without it, once the user
// knows where the data stays.
func TestAVolumeIsForgottenWithItsData(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		stuck := leftBy("stuck", v1.PersistentVolumeReclaimDelete, v1.VolumeFailed)
		stuck.Finalizers = []string{"kubernetes.io/pv-controller"}
		root := recorded(t, stuck)
		const where = "10.20.172.211:/nfs"
		if _, errOut := mustPodvol(t, exitFailed, "pv", "delete", "stuck", "--root-dir", root); !strings.Contains(errOut, where) || !strings.Contains(errOut, "pv delete stuck --keep-data") {
			t.Errorf("stderr: %s", errOut)
		}
		if _, errOut := mustPodvol(t, exitUsage, "pv", "delete", "stuck", "--keep-data", "--root-dir", root); !strings.Contains(errOut, where) || !strings.Contains(errOut, "--yes") {
			t.Errorf("stderr: %s", errOut)
		}
		if _, errOut := mustPodvol(t, exitOK, "pv", "delete", "stuck", "--keep-data", "--dry-run", "--root-dir", root); !strings.Contains(errOut, where+", would stay there") {
			t.Errorf("stderr: %s", errOut)
		}
		out, errOut := mustPodvol(t, exitOK, "pv", "delete", "stuck", "--keep-data", "--yes", "--root-dir", root)
		if out != "persistentvolume \"stuck\" deleted\n" || !strings.Contains(errOut, "its data stays: "+where) {
			t.Errorf("stdout: %s\nstderr: %s", out, errOut)
		}
		if out, _ := mustPodvol(t, exitOK, "pv", "--root-dir", root); out != "" {
			t.Errorf("left: %s", out)
		}
	})
}

// What -o name prints is taken by each command that takes names.
func TestNamesAreTakenAsTheyArePrinted(t *testing.T) {
	root := recorded(t, examplePVC("shop", "data", nil), leftBy("kept", v1.PersistentVolumeReclaimRetain, v1.VolumeReleased))
	volumes, _ := mustPodvol(t, exitOK, "pv", "-o", "name", "--root-dir", root)
	claims, _ := mustPodvol(t, exitOK, "pvc", "-n", "shop", "-o", "name", "--root-dir", root)
	for _, name := range []string{"kept", strings.TrimSpace(volumes), "persistentvolumes/kept"} {
		for _, command := range []string{"pv -o name", "pv delete --dry-run", "pv release --dry-run"} {
			if out, _ := mustPodvol(t, exitOK, append(strings.Fields(command), name, "--root-dir", root)...); !strings.Contains(out, "kept") {
				t.Errorf("%s %s: %s", command, name, out)
			}
		}
	}
	for _, name := range []string{"data", "shop/data", strings.TrimSpace(claims), "persistentvolumeclaim/shop/data", "persistentvolumeclaims/data"} {
		for _, command := range []string{"pvc -o name", "pvc delete --dry-run"} {
			if out, _ := mustPodvol(t, exitOK, append(strings.Fields(command), name, "-n", "shop", "--root-dir", root)...); !strings.Contains(out, "data") {
				t.Errorf("%s %s: %s", command, name, out)
			}
		}
	}
	out, _ := mustPodvol(t, exitOK, "pv", "delete", "kept", strings.TrimSpace(volumes), "--dry-run", "--root-dir", root)
	if strings.Count(out, "\n") != 1 {
		t.Errorf("a volume that is named twice: %s", out)
	}
	for _, name := range []string{"persistentvolumeclaim/kept", "persistentvolume/", "persistentvolume/a/b"} {
		for _, command := range []string{"pv", "pv delete --dry-run", "pv release --dry-run"} {
			mustPodvol(t, exitUsage, append(strings.Fields(command), name, "--root-dir", root)...)
		}
	}
}
