package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
)

func TestDescribe(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		mustPodvol(t, exitOK, "mount", "-f", "../../testdata/claims/dynamic.yaml", "--root-dir", root)
		says := func(want int, args []string, texts ...string) {
			t.Helper()
			out, errOut := mustPodvol(t, want, append(args, "--root-dir", root)...)
			got := strings.Join(strings.Fields(out+errOut), " ")
			for _, text := range texts {
				if !strings.Contains(got, text) {
					t.Errorf("%q: it does not say %q:\n%s%s", args, text, out, errOut)
				}
			}
		}
		says(exitOK, []string{"pvc", "describe", "lab/cache", "lab/archive"}, "Name: cache Namespace: lab", "Status: Bound", "StorageClass: node-dirs", "Capacity: 1Gi", "Reclaim Policy: Delete",
			"its data deleted: "+root, "Used By: lab/worker (volume cache): mounted since ", "Name: archive", "would stay (reclaim policy Retain)")
		says(exitFailed, []string{"pvc", "describe", "none"}, `persistentvolumeclaims "none" not found in namespace default`)
		says(exitUsage, []string{"pvc", "describe"}, "podvol pvc -A lists them")
		says(exitUsage, []string{"pv", "describe"}, "podvol pv lists them")
		names, _ := mustPodvol(t, exitOK, "pv", "-o", "name", "--root-dir", root)
		says(exitOK, append([]string{"pv", "describe"}, strings.Fields(names)...), "Claim: lab/cache", "Claim: lab/archive", "If its claim goes: the volume", "Used By: lab/worker (volume cache): mounted since ")
		mustPodvol(t, exitOK, "unmount", "--all", "--root-dir", root)
		says(exitOK, []string{"pvc", "describe", "cache", "-n", "lab"}, "Used By: no pod on record; podvol run-node does not run")
		mustPodvol(t, exitOK, "pvc", "delete", "lab/cache", "--root-dir", root)
	})
}
