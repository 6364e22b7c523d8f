package main

import (
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume/podrun/runroot"
)

// removeEmptyBase removes the default root directory where a run has left
// nothing in it; one that was named is not podvol's to remove.
func removeEmptyBase(base string) {
	if base == defaultRootDir() {
		_ = unix.Rmdir(base)
	}
}

// runsOf are the runs below a root directory.
func runsOf(base string) runroot.Runs { return runroot.Runs{Base: base, Option: "--root-dir"} }
