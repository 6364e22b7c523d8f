package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// While the disk of a --volume-dir is not mounted, each command says so and puts
// nothing in its mount point; then all goes on, and the data are there.
func TestVolumesOnADiskThatIsNotMounted(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		root, disk, volumes := filepath.Join(t.TempDir(), "root"), filepath.Join(t.TempDir(), "disk"), filepath.Join(t.TempDir(), "volumes")
		for _, dir := range []string{disk, volumes} {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		mountDisk := func() {
			if err := unix.Mount(disk, volumes, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
		}
		at := []string{"--root-dir", root, "--volume-dir", volumes}
		file := manifestFile(t, madeForRuns)
		other := manifestFile(t, strings.NewReplacer("name: data}", "name: other}", "claimName: data", "claimName: other", "name: web", "name: worker").Replace(madeForRuns))
		mountDisk()
		mustPodvol(t, exitOK, append([]string{"mount", "-f", file}, at...)...)
		mustPodvol(t, exitOK, append([]string{"unmount", "-f", file}, at...)...)
		made, err := filepath.Glob(filepath.Join(volumes, "pvc-*"))
		if err != nil || len(made) != 1 {
			t.Fatalf("made %v, %v", made, err)
		}
		kept := filepath.Join(made[0], "kept")
		if err := os.WriteFile(kept, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Unmount(volumes, 0); err != nil {
			t.Fatal(err)
		}
		for name, args := range map[string][]string{
			"the volume is mounted": {"mount", "-f", file},
			"another is made":       {"mount", "-f", other},
			"it is deleted":         {"pvc", "delete", "default/data"},
		} {
			code, out, said := podvol(t, "", slices.Concat(args, at)...)
			if code != exitFailed || !strings.Contains(out+said, "look whether its disk is mounted") || !strings.Contains(out+said, volumes) {
				t.Errorf("%s: exit code %d\n%s%s", name, code, out, said)
			}
			if entries, err := os.ReadDir(volumes); err != nil || len(entries) != 0 {
				t.Errorf("%s: in the mount point is %v, %v", name, entries, err)
			}
		}
		mountDisk()
		mustPodvol(t, exitOK, append([]string{"mount", "-f", other}, at...)...)
		if _, err := os.Stat(kept); err != nil {
			t.Error(err)
		}
	})
}
