package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/podvol/podvol/util/loophold"
)

func TestLoopDevicesOfADirectoryAreDetached(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	hold := func(path string) string {
		t.Helper()
		device, err := loophold.Hold(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := loophold.Release(path); err != nil {
				t.Error(err)
			}
		})
		return device
	}
	ours, theirs := filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "file")
	for _, path := range []string{ours, theirs} {
		if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	device := hold(ours)
	hold(device)
	hold(theirs)
	if err := detachLoops(filepath.Dir(ours)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{ours: 0, device: 0, theirs: 1} {
		if held, err := loophold.Holding(path); err != nil || len(held) != want {
			t.Errorf("%s is behind %v (%v), want %d devices", path, held, err, want)
		}
	}
}
