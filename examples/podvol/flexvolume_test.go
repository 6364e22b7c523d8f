package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// A FlexVolume driver is run from the directory that is given, and nothing of its volume is left.
func TestRunWithAFlexVolumeDriver(t *testing.T) {
	testtool.Need(t, "mount") // by which the driver mounts
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		base, drivers := t.TempDir(), t.TempDir()
		if err := os.CopyFS(drivers, os.DirFS("../../testdata/flexvolume/drivers")); err != nil {
			t.Fatal(err)
		}
		err := filepath.WalkDir(drivers, func(path string, _ fs.DirEntry, err error) error {
			if err == nil {
				err = os.Chmod(path, 0o755) // whatever a checkout has made of it
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		args := []string{"run", "-f", "../../testdata/flexvolume/pod.yaml", "--root-dir", base, "--flexvolume-dir", drivers}
		out, _ := mustPodvol(t, exitOK, append(args, "--", "sh", "-c", "cat /scratch/pod; grep /scratch /proc/self/mountinfo")...)
		if !strings.Contains(out, "flexvolume\n") || !strings.Contains(out, "size=8192k") {
			t.Errorf("the pod has seen\n%s", out)
		}
		assertNoRuns(t, base)
	})
}
