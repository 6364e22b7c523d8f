package loopdev_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/podvol/podvol/util/loopdev"
)

func TestADeviceShowsItsFileAndClearsItself(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	var path string
	t.Run("device", func(t *testing.T) {
		d := loopdev.New(t, 1<<20)
		path = d.Path
		if err := os.WriteFile(d.Path, bytes.Repeat([]byte("x"), 4096), 0); err != nil {
			t.Fatal(err)
		}
		d.Resize(t, 2<<20)
		f, err := os.Open(d.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if size, err := f.Seek(0, 2); err != nil || size != 2<<20 {
			t.Errorf("the device has %d bytes, %v", size, err)
		}
	})
	left, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(path), "loop/backing_file"))
	if err == nil && strings.Contains(string(left), t.Name()) {
		t.Errorf("%s still has %s", path, left)
	}
}
