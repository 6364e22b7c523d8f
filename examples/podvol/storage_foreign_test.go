package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// Where another user could put a link in a volume's place, no volume is made and none
// is mounted; what was made while it was safe can still be unmounted and deleted.
func TestVolumesWhereOthersCanChangeThem(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root, parent := filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "parent")
		volumes := filepath.Join(parent, "volumes")
		if err := os.MkdirAll(volumes, 0o755); err != nil {
			t.Fatal(err)
		}
		at := []string{"--root-dir", root, "--volume-dir", volumes}
		file := manifestFile(t, madeForRuns)
		mustPodvol(t, exitOK, append([]string{"mount", "-f", file}, at...)...)
		for _, open := range []string{parent, volumes} {
			if err := os.Chmod(open, 0o777); err != nil {
				t.Fatal(err)
			}
			for name, tc := range map[string]struct {
				code int
				args []string
			}{
				"mount":    {exitFailed, append([]string{"mount", "-f", file}, at...)},
				"run":      {exitRunFailed, slices.Concat([]string{"run", "-f", file}, at, []string{"--", "true"})},
				"run-node": {exitFailed, append([]string{"run-node", "-f", t.TempDir()}, at...)},
			} {
				if _, said := mustPodvol(t, tc.code, tc.args...); !strings.Contains(said, open+" can be changed by others") || !strings.Contains(said, "--volume-dir") {
					t.Errorf("%s with %s open: %s", name, open, said)
				}
			}
			if err := os.Chmod(open, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(parent, 0o777); err != nil {
			t.Fatal(err)
		}
		mustPodvol(t, exitOK, append([]string{"unmount", "-f", file}, at...)...)
	})
}
