package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/examples/podvol/internal/kubectlget"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/persisted"
	"github.com/podvol/podvol/volume/standalone"
)

// recorded is a root directory with these objects, as a controller leaves them.
func recorded(t *testing.T, all ...kubectlget.Object) (root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "root")
	records, err := persisted.Open(t.Context(), objects.NewStore(), standalone.ClaimsDir(root))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := records.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, o := range all {
		created, err := records.Create(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		o.SetUID(created.GetUID())
		o.SetResourceVersion(created.GetResourceVersion())
		if _, err := records.UpdateStatus(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestRecordedVolumesAreListed(t *testing.T) {
	volumes := exampleVolumes()[:2]
	volumes[1].Status.Message = "recycling failed: the server\nis down"
	root := recorded(t, volumes[1], volumes[0])
	out, errOut := mustPodvol(t, exitOK, "pv", "--root-dir", root)
	lines := strings.Split(out, "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[1], "nfs211 ") || !strings.HasPrefix(lines[2], "old ") {
		t.Errorf("stdout:\n%s", out)
	}
	if want := "  old: recycling failed: the server\n    is down\n"; errOut != want {
		t.Errorf("stderr: %q, want %q", errOut, want)
	}
	for args, want := range map[string]string{
		"nfs211 -o name":                      "persistentvolume/nfs211\n",
		"old persistentvolume/nfs211 -o name": "persistentvolume/old\npersistentvolume/nfs211\n",
	} {
		if out, _ := mustPodvol(t, exitOK, append([]string{"pv", "--root-dir", root}, strings.Fields(args)...)...); out != want {
			t.Errorf("%s: %q, want %q", args, out, want)
		}
	}
	out, errOut = mustPodvol(t, exitFailed, "pv", "missing", "nfs211", "-o", "name", "--root-dir", root)
	if out != "persistentvolume/nfs211\n" || errOut != "podvol: persistentvolumes \"missing\" not found\n" {
		t.Errorf("stdout: %s\nstderr: %s", out, errOut)
	}
	for args, want := range map[string]string{"nfs21": `did you mean "nfs211"?`, "describe nsf211": `did you mean "nfs211"?`, "descibe old": `podvol pv has no command "descibe"; did you mean "describe"?`} {
		if _, errOut := mustPodvol(t, exitFailed, append([]string{"pv", "--root-dir", root}, strings.Fields(args)...)...); !strings.Contains(errOut, want) {
			t.Errorf("%s: %s", args, errOut)
		}
	}
	if out, _ := mustPodvol(t, exitFailed, "pv", "missing", "-o", "json", "--root-dir", root); out != "" {
		t.Errorf("stdout: %s", out)
	}
	if _, errOut := mustPodvol(t, exitUsage, "pv", "-o", "xml", "--root-dir", root); !strings.Contains(errOut, "wide") {
		t.Errorf("stderr: %s", errOut)
	}
}

func TestNoRecords(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	for want, args := range map[string][]string{
		"No resources found\n":                       {"pv"},
		"No resources found in default namespace.\n": {"pvc"},
		"No resources found in shop namespace.\n":    {"pvc", "-n", "shop", "-o", "wide"},
	} {
		out, errOut := mustPodvol(t, exitOK, append(args, "--root-dir", root)...)
		if out != "" || errOut != want {
			t.Errorf("%v: stdout %q, stderr %q", args, out, errOut)
		}
	}
	if out, errOut := mustPodvol(t, exitOK, "pvc", "-A", "-o", "yaml", "--root-dir", root); !strings.Contains(out, "items: []") || errOut != "" {
		t.Errorf("stdout %q, stderr %q", out, errOut)
	}
	if _, err := os.Stat(root); !os.IsNotExist(err) {
		t.Errorf("the root directory was made: %v", err)
	}
}

// A record that is damaged is named, with what to do; all others are printed.
func TestDamagedRecords(t *testing.T) {
	root := recorded(t, exampleVolumes()[0], exampleVolumes()[1], exampleClaims()[1])
	var damaged []string
	entries, err := os.ReadDir(standalone.ClaimsDir(root))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if path := filepath.Join(standalone.ClaimsDir(root), e.Name()); strings.Contains(e.Name(), "old") {
			damaged = append(damaged, path)
			if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(damaged) != 1 {
		t.Fatalf("records: %v", entries)
	}
	out, errOut := mustPodvol(t, exitFailed, "pv", "-o", "name", "--root-dir", root)
	if out != "persistentvolume/nfs211\n" || !strings.Contains(errOut, damaged[0]) || !strings.Contains(errOut, "restore") {
		t.Errorf("stdout: %s\nstderr: %s", out, errOut)
	}
	if out, errOut := mustPodvol(t, exitFailed, "pvc", "-A", "-o", "name", "--root-dir", root); out != "persistentvolumeclaim/data\n" || !strings.Contains(errOut, damaged[0]) {
		t.Errorf("stdout: %s\nstderr: %s", out, errOut)
	}
}

// Why a claim has no volume is what the controller would find.
func TestWhyClaimsArePending(t *testing.T) {
	small := examplePV("small", "1Gi", nil)
	other := examplePV("other", "100Gi", func(pv *v1.PersistentVolume) { pv.Spec.StorageClassName = "fast" })
	claims := exampleClaims()
	fast := examplePVC("shop", "fast", func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("slow") })
	fits := examplePVC("shop", "fits", func(c *v1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("fast") })
	parting := examplePVC("shop", "parting", func(c *v1.PersistentVolumeClaim) {
		c.Finalizers = []string{"kubernetes.io/pvc-protection"}
	})
	named := examplePVC("shop", "named", func(c *v1.PersistentVolumeClaim) { c.Spec.VolumeName = "unknown" })
	claims[1].Spec.StorageClassName = new("")
	root := recorded(t, small, other, claims[0], claims[1], fast, fits, parting, named)
	remove(t, root, parting)
	out, errOut := mustPodvol(t, exitOK, "pvc", "-A", "-o", "name", "--root-dir", root)
	if strings.Count(out, "\n") != 6 {
		t.Errorf("stdout:\n%s", out)
	}
	for _, want := range []string{
		`  ops-test/nfs-211: PersistentVolumeClaim "ops-test/nfs-211" with PersistentVolume "nfs211": the claim has lost its PersistentVolume`,
		`  shop/named: the claim is not bound: PersistentVolume "unknown", which it is for, does not exist; create it` + "\n",
		"too small (small: ",
		`whether storage class "slow" waits for a pod`,
		`  shop/fits: PersistentVolume "other" fits`,
		"  shop/parting: it is being deleted, which podvol run-node does",
	} {
		if !strings.Contains(errOut, want) {
			t.Errorf("stderr does not say %q:\n%s", want, errOut)
		}
	}
	if names := strings.Fields(out); !slices.IsSorted(names[1:]) {
		t.Errorf("not in order:\n%s", out)
	}
	if out, errOut := mustPodvol(t, exitOK, "pvc", "ops-test/nfs-211", "-o", "name", "--root-dir", root); out != "persistentvolumeclaim/nfs-211\n" || strings.Contains(errOut, "shop") {
		t.Errorf("stdout: %s\nstderr: %s", out, errOut)
	}
	for args, want := range map[string]string{
		"data":                   "persistentvolumeclaims \"data\" not found in namespace default; did you mean \"shop/data\"?\n",
		"-n shop nfs-211":        `persistentvolumeclaims "nfs-211" not found in namespace shop; did you mean "ops-test/nfs-211"?`,
		"shop/date":              `persistentvolumeclaims "date" not found in namespace shop; did you mean "data"?`,
		"delte shop/data":        `podvol pvc has no command "delte"; did you mean "delete"?`,
		"describe ops-test/nfs2": "persistentvolumeclaims \"nfs2\" not found in namespace ops-test\n",
	} {
		if _, errOut := mustPodvol(t, exitFailed, append([]string{"pvc", "--root-dir", root}, strings.Fields(args)...)...); !strings.Contains(errOut, want) {
			t.Errorf("%s: %s", args, errOut)
		}
	}
	if _, errOut := mustPodvol(t, exitOK, "pvc", "--root-dir", root); !strings.Contains(errOut, "-A prints") {
		t.Errorf("stderr: %s", errOut)
	}
	for _, args := range [][]string{{"pvc", "-A", "data"}, {"pvc", "a/b/c"}, {"pvc", "/b"}} {
		mustPodvol(t, exitUsage, append(args, "--root-dir", root)...)
	}
}

// remove deletes an object from the records.
func remove(t *testing.T, root string, o kubectlget.Object) {
	t.Helper()
	records, err := persisted.Open(t.Context(), objects.NewStore(), standalone.ClaimsDir(root))
	if err != nil {
		t.Fatal(err)
	}
	kind := kubectlget.VolumeKind.Kind
	if o.GetNamespace() != "" {
		kind = kubectlget.ClaimKind.Kind
	}
	if err := records.Delete(t.Context(), volume.NewObjectRef(kind, o.GetNamespace(), o.GetName()), objects.Preconditions{}); err != nil {
		t.Error(err)
	}
	if err := records.Close(); err != nil {
		t.Error(err)
	}
}

// What is printed is for people and logs; what is mounted with is kept as it was
// applied, for its owner only.
func TestPasswordsOfVolumesAreKeptAndNotPrinted(t *testing.T) {
	const secret = "hunter2hunter2"
	pv := exampleVolumes()[0]
	pv.Spec.MountOptions = []string{"vers=3.0", "password=" + secret}
	pv.Annotations = map[string]string{v1.MountOptionAnnotation: "ro,pass=" + secret, v1.LastAppliedConfigAnnotation: `{"spec":{"mountOptions":["password=` + secret + `"]}}`}
	root := recorded(t, pv)
	for _, format := range []string{"", "wide", "json", "yaml", "name"} {
		for _, names := range [][]string{nil, {pv.Name}} {
			args := append([]string{"pv", "--root-dir", root}, names...)
			if format != "" {
				args = append(args, "-o", format)
			}
			out, errOut := mustPodvol(t, exitOK, args...)
			if strings.Contains(out+errOut, secret) || format == "yaml" && !strings.Contains(out, "vers=3.0") {
				t.Errorf("%v:\n%s\n%s", args, out, errOut)
			}
		}
	}
	if kept := readStored(root).volumes[0]; !slices.Equal(kept.Spec.MountOptions, pv.Spec.MountOptions) {
		t.Errorf("kept: %q", kept.Spec.MountOptions)
	}
	files := 0
	for _, path := range tree(t, root) {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), secret) {
			continue
		}
		info, err := os.Stat(path)
		if files++; err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s is readable for others: %v, %v", path, info.Mode(), err)
		}
	}
	if files == 0 {
		t.Error("no file keeps the password")
	}
}
