package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/examples/podvol/internal/problems"
	"github.com/podvol/podvol/util/testenv/nstest"
)

func problemsOf(t *testing.T, out string) (rows []problems.Row) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	return rows
}

func TestFsckOnTheKernel(t *testing.T) {
	nstest.Parallel(t)
	nstest.RunAlone(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		_, errOut := mustPodvol(t, exitOK, "fsck", "--root-dir", root)
		if !strings.Contains(errOut, "does not exist") {
			t.Errorf("stderr %s", errOut)
		}
		out, _ := mustPodvol(t, exitOK, "mount", "-f", web, "--root-dir", root, "-o", "json")
		mounted := rowsOf(t, out)
		_, errOut = mustPodvol(t, exitOK, "fsck", "--root-dir", root)
		if !strings.Contains(errOut, "Nothing is wrong") {
			t.Errorf("stderr %s", errOut)
		}
		// As after a reboot: the mounts are gone, records and directories are not.
		lost := 0
		for _, r := range mounted {
			if r.Plugin == "kubernetes.io/secret" || r.Plugin == "kubernetes.io/downward-api" {
				if err := unix.Unmount(r.Path, 0); err != nil {
					t.Fatal(err)
				}
				lost++
			}
		}
		out, errOut = mustPodvol(t, exitFailed, "fsck", "--root-dir", root, "-o", "json")
		problems := problemsOf(t, out)
		if len(problems) != lost || lost == 0 || !strings.Contains(errOut, "fsck --repair --root-dir "+root) {
			t.Errorf("%d problems for %d lost mounts: %s, %s", len(problems), lost, out, errOut)
		}
		for _, p := range problems {
			if p.Problem != "record without mount" || p.Repair == "" || p.Repaired {
				t.Errorf("%+v", p)
			}
		}
		out, _ = mustPodvol(t, exitOK, "fsck", "--root-dir", root, "--repair")
		if strings.Count(out, "done:") != lost {
			t.Errorf("repair printed %s", out)
		}
		mustPodvol(t, exitOK, "fsck", "--root-dir", root, "-o", "yaml")

		// Lost records: only --adopt does anything about it.
		if err := os.Remove(filepath.Join(root, "podvol/records")); err != nil {
			t.Fatal(err)
		}
		out, _ = mustPodvol(t, exitFailed, "fsck", "--root-dir", root, "--repair")
		if !strings.Contains(out, "volume without record") || strings.Contains(out, "done:") {
			t.Errorf("without --adopt: %s", out)
		}
		mustPodvol(t, exitFailed, "fsck", "--root-dir", root, "--repair", "--adopt")
		seeDamage(t, root)
		mustPodvol(t, exitOK, "fsck", "--root-dir", root)
		mustPodvol(t, exitOK, "mount", "-f", web, "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		assertNothingMountedBelow(t, root)
		if pods, err := os.ReadDir(filepath.Join(root, "pods")); err == nil && len(pods) > 0 {
			t.Errorf("left: %v", tree(t, filepath.Join(root, "pods")))
		}
	})
}

func TestFsckBadInput(t *testing.T) {
	for _, args := range [][]string{{"fsck", "-o", "table"}, {"fsck", "extra"}, {"fsck", "--root-dir", ""}} {
		mustPodvol(t, exitUsage, args...)
	}
}
