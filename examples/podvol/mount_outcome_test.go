package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// An edit that replaces the source of a volume, and the mounts that a reboot has
// taken, have outcomes of their own.
func TestMountTellsWhatBecameOfAnotherSource(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root, first, second := filepath.Join(t.TempDir(), "root"), t.TempDir(), t.TempDir()
		edit := func(path string) string { return manifestFile(t, pod("{name: v, hostPath: {path: "+path+"}}")) }
		mustPodvol(t, exitOK, "mount", "--node", "n", "-f", edit(first), "--root-dir", root)
		out, errOut := mustPodvol(t, exitFailed, "mount", "--node", "n", "-f", edit(second), "--root-dir", root, "-o", "json")
		if rows := rowsOf(t, out); len(rows) != 1 || rows[0].State != "failed" {
			t.Errorf("rows %+v", rows)
		}
		for _, want := range []string{first, second, "stays mounted", "tear the pod down first", "To unmount: "} {
			if !strings.Contains(errOut, want) {
				t.Errorf("stderr lacks %q:\n%s", want, errOut)
			}
		}
		mustPodvol(t, exitOK, "mount", "--node", "n", "-f", edit(first), "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}

func TestMountAfterAReboot(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		file := manifestFile(t, pod("{name: ram, emptyDir: {medium: Memory}}, {name: disk, emptyDir: {}}"))
		out, _ := mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root, "-o", "json")
		unmountByHand(t, rowsOf(t, out)[0].Path) // as a reboot does
		out, errOut := mustPodvol(t, exitOK, "mount", "-f", file, "--root-dir", root, "-o", "json")
		for _, r := range rowsOf(t, out) {
			if r.State != "mounted" || r.Error != "" {
				t.Errorf("row %+v\n%s", r, errOut)
			}
		}
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		assertNothingMountedBelow(t, root)
	})
}

func unmountByHand(t *testing.T, path string) {
	t.Helper()
	if err := unix.Unmount(path, 0); err != nil {
		t.Fatal(err)
	}
}

// A volume that no container mounts has a row that says so, and is no failure;
// nothing is made for it. It is validated all the same.
func TestMountSkipsWhatNoContainerMounts(t *testing.T) {
	const idle = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers: [{name: c, image: i, volumeMounts: [{name: used, mountPath: /u}]}]
  volumes:
  - {name: used, emptyDir: {}}
  - {name: login, secret: {secretName: gone}}
  - {name: data, persistentVolumeClaim: {claimName: gone}}
  - {name: share, nfs: {server: 10.0.0.1, path: /e}}
`
	file := manifestFile(t, idle)
	out, errOut := mustPodvol(t, exitOK, "mount", "--fake", "-f", file)
	if strings.Count(out, " not used ") != 3 || strings.Count(out, "no container mounts it") != 3 || strings.Contains(errOut, "10.0.0.1") {
		t.Errorf("%s\n%s", out, errOut)
	}
	out, _ = mustPodvol(t, exitOK, "mount", "--fake", "-f", file, "-o", "json")
	rows := rowsOf(t, out)
	if len(rows) != 4 || rows[0].State != "mounted" || rows[0].Detail != "" {
		t.Fatalf("rows %+v", rows)
	}
	for _, r := range rows[1:] {
		if r.State != "not used" || r.Detail != "no container mounts it" || r.Error != "" || r.Path != "" {
			t.Errorf("row %+v", r)
		}
	}
	_, errOut = mustPodvol(t, exitUsage, "mount", "--fake", "-f", manifestFile(t, strings.Replace(idle, "server: 10.0.0.1, ", "", 1)))
	if !strings.Contains(errOut, "server") {
		t.Errorf("stderr: %s", errOut)
	}
}

// An error that came beside those that are printed already is printed, too.
func TestErrorsBesidesThePrintedOnes(t *testing.T) {
	left := errors.New("it stays behind")
	for _, tc := range []struct{ err, want error }{
		{errReported, nil},
		{errors.Join(errReported, nil), nil},
		{errors.Join(errReported, left), left},
		{errors.Join(errors.Join(errReported), left), left},
		{left, left},
	} {
		if got := besides(tc.err, errReported); fmt.Sprint(got) != fmt.Sprint(tc.want) {
			t.Errorf("besides(%q) = %v, want %v", tc.err, got, tc.want)
		}
	}
}
