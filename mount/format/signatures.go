package format

import (
	"bytes"
	"context"
)

// signature is a magic number at a fixed place.
type signature struct {
	name   string
	kind   Kind
	offset int64
	magic  string
}

// at reports whether the magic number is there; a device too small for it does
// not have it.
func (s signature) at(ctx context.Context, r *reader) (bool, error) {
	b, err := r.read(ctx, s.offset, len(s.magic))
	return err == nil && b != nil && bytes.Equal(b, []byte(s.magic)), err
}

// signatures lists the magic numbers that stand alone, on a device of size
// bytes. Those that need a second look are in superblocks.go.
func signatures(size int64) []signature {
	list := startSignatures()
	list = append(list, swapSignatures()...)
	list = append(list, discSignatures()...)
	return append(list, endSignatures(size)...)
}

func startSignatures() []signature {
	return append([]signature{
		// File systems.
		{"exfat", Filesystem, 3, "EXFAT   "},
		{"ntfs", Filesystem, 3, "NTFS    "},
		{"ReFS", Filesystem, 0, "\x00\x00\x00ReFS\x00"},
		{"squashfs", Filesystem, 0, "hsqs"},
		{"squashfs", Filesystem, 0, "sqsh"},
		{"erofs", Filesystem, 1024, "\xe2\xe1\xf5\xe0"},
		{"f2fs", Filesystem, 1024, "\x10\x20\xf5\xf2"},
		{"nilfs2", Filesystem, 1024, "\x02\x00\x00\x00\x00\x00\x34\x34"},
		{"jfs", Filesystem, 0x8000, "JFS1"},
		{"reiserfs", Filesystem, 0x2034, "ReIsErFs"},
		{"reiserfs", Filesystem, 0x10034, "ReIsErFs"},
		{"reiserfs", Filesystem, 0x10034, "ReIsEr2Fs"},
		{"reiserfs", Filesystem, 0x10034, "ReIsEr3Fs"},
		{"reiser4", Filesystem, 0x10000, "ReIsEr4"},
		{"gfs2", Filesystem, 0x10000, "\x01\x16\x19\x70"},
		{"ufs", Filesystem, 8192 + 1372, "\x54\x19\x01\x00"},
		{"ufs", Filesystem, 65536 + 1372, "\x54\x19\x01\x00"},
		{"hfsplus", Filesystem, 1024, "H+\x00"},
		{"hfsplus", Filesystem, 1024, "HX\x00"},
		{"hpfs", Filesystem, 8192, "\x49\xe8\x95\xf9"},
		{"apfs", Filesystem, 32, "NXSB"},
		{"cramfs", Filesystem, 0, "\x45\x3d\xcd\x28"},
		{"romfs", Filesystem, 0, "-rom1fs-"},
		{"bcachefs", Filesystem, 0x1018, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"},
		{"VMFS", Filesystem, 0x200000, "\x5e\xf1\xab\x2f"},
		// Stacked on a device.
		{"crypto_LUKS", Member, 0, "LUKS\xba\xbe"},
		{"BitLocker", Member, 3, "-FVE-FS-"},
		{"LVM1_member", Member, 0, "HM\x01\x00"},
		{"LVM1_member", Member, 0, "HM\x02\x00"},
		{"linux_raid_member", Member, 0, "\xfc\x4e\x2b\xa9"},    // version 1.1
		{"linux_raid_member", Member, 4096, "\xfc\x4e\x2b\xa9"}, // version 1.2
		{"ceph_bluestore", Member, 0, "bluestore block device"},
		{"bcache", Member, 0x1018, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
		{"stratis", Member, 512 + 4, "!Stra0tis\x86\xff\x02^\x41rh"},
		{"vdo", Member, 0, "dmvdo001"},
		{"oracleasm", Member, 32, "ORCLDISK"},
		{"VMFS_volume_member", Member, 0x100000, "\x0d\xd0\x01\xc0"},
		// Partition tables.
		{"gpt", PartitionTable, 512, "EFI PART"},
		{"gpt", PartitionTable, 4096, "EFI PART"},
		{"dos", PartitionTable, 510, "\x55\xaa"},
		{"sun", PartitionTable, 508, "\xda\xbe"},
		{"sgi", PartitionTable, 0, "\x0b\xe5\xa9\x41"},
		{"bsd", PartitionTable, 512, "\x57\x45\x56\x82"},
		{"mac", PartitionTable, 512, "PM\x00\x00"},
	}, repeatedSignatures()...)
}

// repeatedSignatures are those that stand at one of several places.
func repeatedSignatures() (list []signature) {
	for _, offset := range []int64{1024, 2048, 4096, 8192} {
		list = append(list, signature{"ocfs2", Filesystem, offset, "OCFSV2"})
	}
	for sector := range int64(4) {
		list = append(list, signature{"LVM2_member", Member, sector * 512, "LABELONE"})
	}
	for offset := int64(0x4000); offset <= 0x400000; offset *= 2 { // LUKS2's second header
		list = append(list, signature{"crypto_LUKS", Member, offset, "SKUL\xba\xbe"})
	}
	return list
}

// swapSignatures are of swap space and suspended systems, at the end of the first
// page of any size.
func swapSignatures() []signature {
	var list []signature
	for page := int64(4096); page <= 65536; page *= 2 {
		for _, magic := range []string{"SWAP-SPACE", "SWAPSPACE2"} {
			list = append(list, signature{"swap", Member, page - 10, magic})
		}
		for _, magic := range []string{"S1SUSPEND", "S2SUSPEND", "ULSUSPEND", "LINHIB0001"} {
			list = append(list, signature{"swsuspend", Member, page - 10, magic})
		}
	}
	return list
}

// discSignatures are the volume descriptors of ISO 9660 and UDF.
func discSignatures() []signature {
	list := []signature{
		{"iso9660", Filesystem, 0x8001, "CD001"},
		{"iso9660", Filesystem, 0x8009, "CDROM"},
	}
	// UDF's recognition sequence is one descriptor to a block of 2 KiB or 4 KiB.
	for offset := int64(0x8001); offset < 0x8001+16*2048; offset += 2048 {
		for _, magic := range []string{"NSR02", "NSR03"} {
			list = append(list, signature{"udf", Filesystem, offset, magic})
		}
	}
	return list
}

// endSignatures are those that are found from the end of the device.
func endSignatures(size int64) []signature {
	list := []signature{
		{"gpt", PartitionTable, size - 512, "EFI PART"},
		{"gpt", PartitionTable, size - 4096, "EFI PART"},
		{"ddf_raid_member", Member, size - 512, "\xde\x11\xde\x11"},
		{"isw_raid_member", Member, size - 1024, "Intel Raid ISM Cfg Sig. "},
		// Version 1.0 lies 8 to 12 KiB before the end, 0.90 64 to 128 KiB, in
		// the byte order of its machine.
		{"linux_raid_member", Member, (size/512 - 16) &^ 7 * 512, "\xfc\x4e\x2b\xa9"},
		{"linux_raid_member", Member, size&^0xffff - 0x10000, "\xfc\x4e\x2b\xa9"},
		{"linux_raid_member", Member, size&^0xffff - 0x10000, "\xa9\x2b\x4e\xfc"},
		{"nilfs2", Remains, size&^4095 - 4096, "\x02\x00\x00\x00\x00\x00\x34\x34"},
	}
	for _, magic := range []string{"\x83\x74\x02\x6b", "\x83\x74\x02\x6c", "\x83\x74\x02\x6d"} {
		list = append(list, signature{"drbd", Member, size&^4095 - 4096 + 60, magic})
	}
	return list
}
