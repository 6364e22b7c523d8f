package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// Once the records are lost, a claim gets no empty volume in a --volume-dir that has
// its data, also where others make volumes there too; and these go on.
func TestVolumesWhoseRecordsAreLost(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		volumes, root, neighbour := t.TempDir(), filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "root")
		file := manifestFile(t, madeForRuns)
		mount := func(root string) []string {
			return []string{"mount", "-f", file, "--root-dir", root, "--volume-dir", volumes}
		}
		mustPodvol(t, exitOK, mount(root)...)
		mustPodvol(t, exitOK, "unmount", "-f", file, "--root-dir", root, "--volume-dir", volumes)
		made, err := filepath.Glob(filepath.Join(volumes, "pvc-*"))
		if err != nil || len(made) != 1 {
			t.Fatalf("made %v, %v", made, err)
		}
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
		out, said := mustPodvol(t, exitFailed, mount(root)...)
		if said += out; !strings.Contains(said, "no record") || !strings.Contains(said, made[0]) {
			t.Errorf("mounted again:\n%s", said)
		}
		mustPodvol(t, exitOK, mount(neighbour)...)
	})
}
