package blockdev

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// byID begins the names that udev takes from the hardware (/dev/disk/by-id), the
// best first: a disk is best known by a name that no other can have.
func preferred() []string {
	return []string{"wwn-", "nvme-eui.", "nvme-uuid.", "nvme-nguid.", "dm-uuid-", "md-uuid-", "scsi-", "ata-", "nvme-", "virtio-", "mmc-", "usb-"}
}

// Names returns the names that tell the device from every other, whatever it is
// called and wherever it is plugged in, the best first: udev's, as
// "id:wwn-0x5000c500a1b2c3d4", then the kernel's own, as
// "wwid:naa.5000c500a1b2c3d4", "dm:LVM-…", "md:…", "serial:…" and, for a loop
// device, "loop:inode:offset:path" of its file. A partition has its disk's names
// with "-part" and its number. There are none where nothing is known. Of two
// devices that have one name in common one is a copy of the other, or they are
// the same.
func (d *Device) Names() []string {
	var names []string
	for _, id := range d.udevNames() {
		names = append(names, "id:"+id)
	}
	disk, suffix := d.described(), ""
	if number := attribute(disk, "partition"); number != "" {
		disk, suffix = filepath.Join(resolved(disk), ".."), "-part"+number
	}
	for _, known := range []struct {
		kind  string
		files []string
	}{
		{"wwid", []string{"wwid", "device/wwid"}},
		{"dm", []string{"dm/uuid"}},
		{"md", []string{"md/uuid"}},
		{"serial", []string{"serial", "device/serial"}},
	} {
		for _, file := range known.files {
			if value := attribute(disk, file); value != "" {
				names = append(names, known.kind+":"+strings.Join(strings.Fields(value), "_")+suffix)
				break
			}
		}
	}
	if loop := d.loopName(); loop != "" {
		names = append(names, loop)
	}
	return names
}

// resolved is where a link of sysfs leads, or the link.
func resolved(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return path
	}
	return real
}

// udevNames are the device's links in /dev/disk/by-id, best first. An
// administrator's names, and names of the device's content, do not count.
func (d *Device) udevNames() []string {
	dir := filepath.Join(d.system.dev(), "disk/by-id")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		given := strings.HasPrefix(name, "dm-name-") || strings.HasPrefix(name, "md-name-") || strings.HasPrefix(name, "lvm-pv-uuid-")
		if !given && d.isAt(filepath.Join(dir, name)) {
			names = append(names, name)
		}
	}
	rank := func(name string) int {
		i := slices.IndexFunc(preferred(), func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if i < 0 {
			return len(preferred())
		}
		return i
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank(a) - rank(b) })
	return names
}

// loopName names the file behind a loop device (loop(4)).
func (d *Device) loopName() string {
	const loopMajor = 7
	if unix.Major(d.number) != loopMajor {
		return ""
	}
	info, err := unix.IoctlLoopGetStatus64(int(d.file.Fd()))
	if err != nil {
		return ""
	}
	// The ioctl has 63 bytes of the path, sysfs all.
	path := attribute(d.described(), "loop/backing_file")
	if path == "" {
		name, _, _ := bytes.Cut(info.File_name[:], []byte{0})
		path = string(name)
	}
	if path == "" {
		return ""
	}
	return fmt.Sprintf("loop:%d:%d:%s", info.Inode, info.Offset, path)
}

// Slot returns the place where the device is plugged in, which is the same after
// a reboot: udev's name (/dev/disk/by-path), as "slot:pci-0000:00:05.0", or what
// the kernel tells of a virtio disk. It is empty where there is none, as of a
// virtual device. Another disk in that place has the same.
func (d *Device) Slot() string {
	dir := filepath.Join(d.system.dev(), "disk/by-path")
	names, _ := entries(dir) // a name less
	for _, name := range names {
		if d.isAt(filepath.Join(dir, name)) {
			return "slot:" + name
		}
	}
	place, rest, ok := strings.Cut(resolved(d.described()), "/virtio")
	if !ok || !strings.Contains(rest, "/block/") {
		return ""
	}
	slot := "slot:" + strings.ReplaceAll(filepath.Base(place), "/", "_")
	if number := attribute(d.described(), "partition"); number != "" {
		slot += "-part" + number
	}
	return slot
}
