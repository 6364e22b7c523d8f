package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/nstest"
)

// A claim that is wanted no more goes though the disk of its record is full, or
// as soon as that has room again.
func TestRunNodeDeletesClaimsOfAFullDisk(t *testing.T) {
	nstest.Parallel(t)
	nstest.Run(t, func(t *testing.T) {
		dir, root := t.TempDir(), t.TempDir()
		if err := unix.Mount("none", root, "tmpfs", 0, "size=4m"); err != nil {
			t.Fatal(err)
		}
		defer unix.Unmount(root, unix.MNT_DETACH)
		putManifest(t, dir, "class.yaml", waitingClass)
		putManifest(t, dir, "a.yaml", claimManifest("a", "ReadWriteOnce"))
		putManifest(t, dir, "p.yaml", podNamed("p", usesClaim("pa", "a")))
		n := runProcess(t, dir, root)
		n.row("pa", "mounted")
		filler := filepath.Join(root, "filler")
		fill(t, filler)
		n.remove("p.yaml")
		n.remove("a.yaml")
		n.row("pa", "unmounted")
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		awaitStored(t, root, "without the claim and its volume", func(s recordedClaims) bool { return len(s.claims)+len(s.volumes) == 0 })
		n.stop()
	})
}

// fill writes a file until its disk is full.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 16, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(bytes.Repeat([]byte("x"), size))
		}
	}
}
