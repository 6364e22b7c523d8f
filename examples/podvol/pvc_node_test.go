package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// Storage that was made under another name of this machine is deleted under that
// name, which is told before anything has changed.
func TestStorageIsDeletedUnderTheNameItWasMadeUnder(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root := filepath.Join(t.TempDir(), "root")
		file := manifestFile(t, strings.ReplaceAll(claimsOfTwoKinds, "DIR", filepath.Join(t.TempDir(), "kept")))
		at := func(code int, args ...string) (out, errOut string) {
			t.Helper()
			return mustPodvol(t, code, append(args, "--root-dir", root)...)
		}
		at(exitOK, "mount", "-f", file, "--node", "laptop")
		at(exitOK, "unmount", "-f", file, "--node", "laptop")
		before, _ := at(exitOK, "pv", "-o", "json")
		for _, how := range [][]string{nil, {"--dry-run"}} {
			if _, errOut := at(exitFailed, append([]string{"pvc", "delete", "shop/orders", "--node", "other"}, how...)...); !strings.Contains(errOut, "say --node laptop") {
				t.Errorf("%v: %s", how, errOut)
			}
		}
		if after, _ := at(exitOK, "pv", "-o", "json"); after != before {
			t.Errorf("changed to %s", after)
		}
		at(exitOK, "pvc", "delete", "shop/static", "--node", "other") // whose data stays
		at(exitOK, "pvc", "delete", "shop/orders", "--node", "laptop")
		if made, err := filepath.Glob(filepath.Join(root, "podvol", "volumes", "pvc-*")); err != nil || len(made) != 0 {
			t.Errorf("left: %q, %v", made, err)
		}
	})
}
