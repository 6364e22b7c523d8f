package blockdev_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/blockdev"
	"github.com/podvol/podvol/util/testenv/loopdev"
	"github.com/podvol/podvol/util/testenv/nstest"
)

func TestWhatIsNoDeviceIsNotOpened(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil { // opening it would wait for a writer
		t.Fatal(err)
	}
	for _, path := range []string{dir, pipe, "/dev/null"} {
		if _, err := (blockdev.System{}).Open(path, unix.O_RDONLY); !errors.Is(err, unix.ENOTBLK) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := (blockdev.System{}).Open(filepath.Join(dir, "missing"), unix.O_RDONLY); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// described makes a device of a machine that is described below dir.
func described(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, isLink := strings.CutPrefix(content, "-> "); isLink {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content+"\n"), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestDevice(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		if !strings.HasSuffix(t.Name(), "/root") {
			if os.Geteuid() != 0 {
				t.Error("it is not root of its namespace")
			}
			return // no block devices here
		}
		loop := loopdev.New(t, 3<<20+512)
		number := strings.TrimPrefix(loop.Path, "/dev/loop")
		dir := t.TempDir()
		link := filepath.Join(dir, "link")
		if err := os.Symlink(loop.Path, link); err != nil {
			t.Fatal(err)
		}
		device, err := blockdev.System{}.Open(link, unix.O_RDWR|unix.O_EXCL)
		if err != nil {
			t.Fatal(err)
		}
		if size, err := device.Size(); size != 3<<20+512 || err != nil {
			t.Errorf("size %d, %v", size, err)
		}
		if ro, err := device.ReadOnly(); ro || err != nil {
			t.Errorf("read-only: %v, %v", ro, err)
		}
		if name := device.KernelName(); name != "loop"+number {
			t.Errorf("it is called %s", name)
		}
		if names := device.Names(); len(names) != 1 || !strings.HasSuffix(names[0], loop.Backing) || !strings.HasPrefix(names[0], "loop:") {
			t.Errorf("names %q", names)
		}
		if uses, err := device.Uses(); device.Slot() != "" || len(uses) > 0 || err != nil {
			t.Errorf("slot %q, uses %q, %v", device.Slot(), uses, err)
		}
		if _, err := (blockdev.System{}).Open(link, unix.O_RDONLY|unix.O_EXCL); !errors.Is(err, unix.EBUSY) {
			t.Errorf("a second exclusive one: %v", err)
		}
		device.Close()
		over := loopdev.Of(t, loop.Path, 0)
		again, err := blockdev.System{}.Open(link, unix.O_RDONLY)
		if err != nil {
			t.Fatal(err)
		}
		if uses, err := again.Uses(); err != nil || !slices.Equal(uses, []string{"holder " + filepath.Base(over.Path)}) {
			t.Errorf("uses %q", uses)
		}
		again.Close()

		// As another machine would describe it: the second partition of a disk.
		described(t, dir, map[string]string{
			"dev/disk/by-id/ata-Model_1-part2":                        "-> " + loop.Path,
			"dev/disk/by-id/wwn-0x5-part2":                            "-> ../../elsewhere",
			"dev/elsewhere":                                           "-> " + loop.Path,
			"dev/disk/by-id/dm-name-vg-lv":                            "-> " + loop.Path,
			"dev/disk/by-id/wwn-0x6":                                  "-> /dev/null",
			"dev/disk/by-path/pci-0000:00:1f.2-part2":                 "-> " + loop.Path,
			"sys/dev/block/7:" + number:                               "-> ../../devices/pci0000:00/ata1/block/sda/sda2",
			"sys/devices/pci0000:00/ata1/block/sda/wwid":              "naa.5  model 1",
			"sys/devices/pci0000:00/ata1/block/sda/sda2/partition":    "2",
			"sys/devices/pci0000:00/ata1/block/sda/sda2/holders/dm-3": "",
			"proc/swaps": "Filename\tType\n" + strings.ReplaceAll(link, "link", `a\040link`) + " partition 1 0 -2",
			"a link":     "-> " + loop.Path,
		})
		system := blockdev.System{Dev: filepath.Join(dir, "dev"), Sys: filepath.Join(dir, "sys"), Proc: filepath.Join(dir, "proc")}
		part, err := system.Open(link, unix.O_RDONLY)
		if err != nil {
			t.Fatal(err)
		}
		defer part.Close()
		want := []string{"id:wwn-0x5-part2", "id:ata-Model_1-part2", "wwid:naa.5_model_1-part2"}
		if names := part.Names(); len(names) < 3 || !slices.Equal(names[:3], want) {
			t.Errorf("names %q, want %q", names, want)
		}
		if slot := part.Slot(); slot != "slot:pci-0000:00:1f.2-part2" || part.KernelName() != "sda2" {
			t.Errorf("slot %q of %s", slot, part.KernelName())
		}
		if uses, err := part.Uses(); err != nil || !slices.Equal(uses, []string{"holder dm-3", "swap"}) {
			t.Errorf("uses %q, %v", uses, err)
		}
		// What cannot be read is no "nothing".
		for _, file := range []string{"sys/block", "proc/swaps", "sys/devices/pci0000:00/ata1/block/sda/sda2/holders"} {
			whole := filepath.Join(dir, file)
			_ = os.Rename(whole, whole+" kept")
			if err := os.Symlink(filepath.Base(whole), whole); err != nil {
				t.Fatal(err)
			}
			if uses, err := part.Uses(); !errors.Is(err, unix.ELOOP) {
				t.Errorf("%s: uses %q, %v", file, uses, err)
			}
			if err := os.Remove(whole); err != nil {
				t.Fatal(err)
			}
			_ = os.Rename(whole+" kept", whole)
		}
	})
}
