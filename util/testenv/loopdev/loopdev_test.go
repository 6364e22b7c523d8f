package loopdev_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/testenv/loopdev"
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

func TestACutDeviceCannotBeRead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loop devices need root")
	}
	const size, left = 1 << 20, 64 << 10
	d := loopdev.New(t, size)
	if err := os.WriteFile(d.Path, bytes.Repeat([]byte("x"), size), 0); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(d.Cut(t, left).Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if end, err := f.Seek(0, io.SeekEnd); err != nil || end != size {
		t.Errorf("the device has %d bytes, %v", end, err)
	}
	block := make([]byte, 4096)
	if _, err := f.ReadAt(block, 0); err != nil || block[0] != 'x' {
		t.Errorf("at the start: %q, %v", block[0], err)
	}
	for _, offset := range []int64{left, size - 4096} {
		if _, err := f.ReadAt(block, offset); !errors.Is(err, unix.EIO) {
			t.Errorf("at %d: %v, want EIO", offset, err)
		}
	}
}
