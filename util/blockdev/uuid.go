package blockdev

import (
	"encoding/hex"
	"path/filepath"
	"strings"
)

// FileSystemUUID returns the UUID of the file system on the device, as udev
// (/dev/disk/by-uuid) or the superblock of ext2 to ext4, XFS or btrfs tells it; it is
// empty where there is none of these. It may read the device.
func (d *Device) FileSystemUUID() string {
	dir := filepath.Join(d.system.dev(), "disk/by-uuid")
	names, _ := entries(dir) // the superblock has it, too
	for _, name := range names {
		if d.isAt(filepath.Join(dir, name)) {
			return strings.ToLower(name)
		}
	}
	for _, s := range []struct {
		magicAt, uuidAt int64
		magic           string
	}{
		{1024 + 0x38, 1024 + 0x68, "\x53\xef"},
		{0, 32, "XFSB"},
		{64<<10 + 0x40, 64<<10 + 0x20, "_BHRfS_M"},
	} {
		magic, uuid := make([]byte, len(s.magic)), make([]byte, 16)
		if _, err := d.file.ReadAt(magic, s.magicAt); err != nil || string(magic) != s.magic {
			continue
		}
		if _, err := d.file.ReadAt(uuid, s.uuidAt); err == nil && string(uuid) != strings.Repeat("\x00", len(uuid)) {
			text := hex.EncodeToString(uuid)
			return strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-")
		}
	}
	return ""
}
