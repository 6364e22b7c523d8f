package format_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount/format"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// A blank device that a pod has as a block volume is not formatted under it. The kernel does not
// keep another from that.
func TestABlockVolumeIsNotFormatted(t *testing.T) {
	onHost(t, func(t *testing.T) {
		testtool.Need(t, "mkfs.ext4")
		d, node := loopdev.New(t, 64*mib), filepath.Join(t.TempDir(), "uid-of-a-pod")
		before := content(t, d)
		if err := errors.Join(os.WriteFile(node, nil, 0o600), unix.Mount(d.Path, node, "", unix.MS_BIND, "")); err != nil {
			t.Fatal(err)
		}
		f, target := format.New(format.Config{Mounter: host.New(host.Config{})}), t.TempDir()
		got, err := f.FormatAndMount(t.Context(), request(d.Path, target, "ext4"))
		if !errors.Is(err, format.ErrInUse) || !strings.Contains(err.Error(), node) || got.Formatted || content(t, d) != before {
			t.Errorf("FormatAndMount = %+v, %v; changed: %v", got, err, content(t, d) != before)
		}
		if err := unix.Unmount(node, 0); err != nil {
			t.Fatal(err)
		}
		if got, err := f.FormatAndMount(t.Context(), request(d.Path, target, "ext4")); err != nil || !got.Formatted {
			t.Errorf("once it is free: %+v, %v", got, err)
		}
	})
}

// A program that may be there is not taken for missing.
func TestProgramsThatCannotBeLookedFor(t *testing.T) {
	onHost(t, func(t *testing.T) {
		dir, d := t.TempDir(), loopdev.New(t, 64*mib)
		if err := os.Symlink("blkid", filepath.Join(dir, "blkid")); err != nil { // ELOOP
			t.Fatal(err)
		}
		f := format.New(format.Config{Mounter: host.New(host.Config{}), ToolDirs: []string{dir}})
		if got, err := f.FormatAndMount(t.Context(), request(d.Path, t.TempDir(), "ext4")); !errors.Is(err, unix.ELOOP) || !errors.Is(err, format.ErrUnreadable) || got.Formatted {
			t.Errorf("FormatAndMount = %+v, %v", got, err)
		}
	})
}
