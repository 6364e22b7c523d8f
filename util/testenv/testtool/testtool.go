// Package testtool is for tests that run programs which not every machine has.
package testtool

import (
	"os/exec"
	"testing"
)

// Need skips a test on a machine that lacks one of the programs, and names the
// Debian package that has it. A program that [Package] does not know fails the
// test, wherever it runs.
//
// Call it first in a test, or in a helper that runs the program.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		from := Package(program)
		if from == "" {
			t.Fatalf("util/testenv/testtool does not know the package of %s: add it there", program)
		}
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("this machine has no %s, which is in Debian's package %s", program, from)
		}
	}
}

// Package returns the Debian package that has a program, or nothing for a program
// that no test needs.
func Package(program string) string {
	switch program {
	case "newuidmap", "newgidmap":
		return "uidmap"
	case "mkfs.ext2", "mkfs.ext3", "mkfs.ext4", "debugfs", "dumpe2fs":
		return "e2fsprogs"
	case "mkfs.xfs":
		return "xfsprogs"
	case "mkfs.btrfs":
		return "btrfs-progs"
	case "mkfs.vfat":
		return "dosfstools"
	case "mkswap", "wipefs":
		return "util-linux"
	case "sfdisk":
		return "fdisk"
	case "busybox":
		return "busybox-static"
	case "mount":
		return "mount"
	case "ps":
		return "procps"
	case "glusterd", "gluster":
		return "glusterfs-server"
	case "xz":
		return "xz-utils"
	case "gcc":
		return "gcc"
	}
	return ""
}
