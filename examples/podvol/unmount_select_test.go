package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/nstest"
)

// Whoever asks to unmount what is not there is told what is, and so is a program by
// the exit code where a pod was named; what is there of the others goes.
func TestUnmountOfWhatIsNotThere(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		file, other := manifestFile(t, podNamed("a", disk)), manifestFile(t, podNamed("b", disk))
		missing := filepath.Join(root, "missing")
		mustPodvol(t, exitFailed, "unmount", "--pod", "shop/a", "--root-dir", missing)
		mustPodvol(t, exitOK, "unmount", "-f", file, "--root-dir", missing)
		for _, node := range []string{"laptop", "desk"} {
			mustPodvol(t, exitOK, "mount", "-f", file, "--node", node, "--root-dir", root)
		}
		out, _ := mustPodvol(t, exitOK, "status", "--root-dir", root, "-o", "json")
		status := rowsOf(t, out)
		if len(status) != 2 || status[0].PodUID == "" || status[0].PodUID == status[1].PodUID {
			t.Fatalf("rows %+v", status)
		}
		if table, _ := mustPodvol(t, exitOK, "status", "--root-dir", root); !strings.Contains(table, "shop/a ("+status[0].PodUID+")") {
			t.Errorf("status:\n%s", table)
		}
		for name, tc := range map[string]struct {
			code int
			args []string
			says string
		}{
			"misspelt":              {exitFailed, []string{"--pod", "shop/aa"}, "pod shop/aa has nothing mounted"},
			"not there":             {exitFailed, []string{"-f", other, "--pod", "shop/b"}, "pod shop/b of node"},
			"not in the manifests":  {exitUsage, []string{"-f", other, "--pod", "shop/a"}, "have no pod shop/a"},
			"in no manifest by now": {exitOK, []string{"-f", other}, "Nothing to unmount"},
			"without its node":      {exitFailed, []string{"-f", file}, "say --node as mount did"},
			"of another node":       {exitFailed, []string{"-f", file, "--node", "phone"}, "of node phone has nothing mounted"},
			"of several nodes":      {exitUsage, []string{"--pod", "shop/a"}, "say which with --uid: "},
			"of no UID":             {exitFailed, []string{"--uid", "x"}, "no pod with UID x"},
			"a UID and a file":      {exitUsage, []string{"--uid", "x", "-f", file}, "--uid goes without"},
		} {
			t.Run(name, func(t *testing.T) {
				_, errOut := mustPodvol(t, tc.code, append([]string{"unmount", "--root-dir", root}, tc.args...)...)
				if !strings.Contains(errOut, tc.says) {
					t.Errorf("stderr lacks %q:\n%s", tc.says, errOut)
				}
				if tc.code != exitUsage && !strings.Contains(errOut, "Mounted below "+root+" are volumes of shop/a;") {
					t.Errorf("stderr does not say what is mounted:\n%s", errOut)
				}
			})
		}
		mustPodvol(t, exitOK, "mount", "-f", other, "--node", "laptop", "--root-dir", root)
		mustPodvol(t, exitFailed, "unmount", "--pod", "shop/b", "--pod", "shop/typo", "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--uid", status[0].PodUID, "--root-dir", root)
		out, _ = mustPodvol(t, exitOK, "status", "--root-dir", root, "-o", "json")
		if left := rowsOf(t, out); len(left) != 1 || left[0].PodUID != "" {
			t.Errorf("left: %+v", left)
		}
		mustPodvol(t, exitOK, "unmount", "--pod", "shop/a", "--root-dir", root) // of one only by now
		out, _ = mustPodvol(t, exitOK, "mount", "-f", manifestFile(t, podNamed("ram", "{name: r, emptyDir: {medium: Memory}}")), "--root-dir", root, "-o", "json")
		unmountByHand(t, rowsOf(t, out)[0].Path)
		mustPodvol(t, exitFailed, "status", "--root-dir", root)
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
	})
}
