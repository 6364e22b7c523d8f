package format

import (
	"context"
	"encoding/binary"
)

// Features that tell ext2, ext3 and ext4 apart (linux/fs/ext4/ext4.h).
const (
	extHasJournal   = 0x4              // compat
	extJournalDev   = 0x8              // incompat
	ext3Incompat    = 0x2 | 0x4 | 0x10 // filetype, needs recovery, meta_bg
	ext3ReadOnly    = 0x1 | 0x2 | 0x4  // sparse_super, large_file, btree_dir
	extSuperblock   = 1024
	extMagicOffset  = 0x38
	extSuperblocked = 0x68 // bytes of it that are read
)

// ext looks for ext2, ext3 and ext4 and, where their superblock is gone, for
// its first copy, which lies in the second group: one group is as many blocks
// as one block has bits.
func ext(ctx context.Context, r *reader) ([]Signature, error) {
	b, err := r.read(ctx, extSuperblock, extSuperblocked)
	if err != nil {
		return nil, err
	}
	if hasExtMagic(b) {
		return []Signature{{extType(b), Filesystem, extSuperblock + extMagicOffset}}, nil
	}
	for _, at := range []struct{ block, group int64 }{{1024, 8193}, {2048, 16384}, {4096, 32768}, {65536, 524288}} {
		offset := at.block * at.group
		b, err := r.read(ctx, offset, extSuperblocked)
		if err != nil {
			return nil, err
		}
		// A copy names its group, which tells it from a file's content.
		if hasExtMagic(b) && binary.LittleEndian.Uint16(b[0x5a:]) == 1 {
			return []Signature{{extType(b), Remains, offset + extMagicOffset}}, nil
		}
	}
	return nil, nil
}

func hasExtMagic(b []byte) bool {
	return b != nil && binary.LittleEndian.Uint16(b[extMagicOffset:]) == 0xef53
}

func extType(superblock []byte) string {
	compat := binary.LittleEndian.Uint32(superblock[0x5c:])
	incompat := binary.LittleEndian.Uint32(superblock[0x60:])
	readOnly := binary.LittleEndian.Uint32(superblock[0x64:])
	switch {
	case incompat&extJournalDev != 0:
		return "jbd"
	case incompat&^ext3Incompat != 0 || readOnly&^ext3ReadOnly != 0:
		return "ext4"
	case compat&extHasJournal != 0:
		return "ext3"
	}
	return "ext2"
}

// xfs looks for XFS, whose superblock says while it is being made that it is.
func xfs(ctx context.Context, r *reader) ([]Signature, error) {
	b, err := r.read(ctx, 0, 128)
	if err != nil || b == nil || string(b[:4]) != "XFSB" {
		return nil, err
	}
	const inProgress = 126
	if b[inProgress] != 0 {
		return []Signature{{"xfs", Remains, 0}}, nil
	}
	return []Signature{{"xfs", Filesystem, 0}}, nil
}

// btrfs looks for btrfs, which has another magic number while it is being made,
// and where its first superblock is gone for the copies.
func btrfs(ctx context.Context, r *reader) ([]Signature, error) {
	const magicOffset = 0x40
	for i, superblock := range []int64{64 << 10, 64 << 20, 256 << 30} {
		b, err := r.read(ctx, superblock+magicOffset, 8)
		if err != nil {
			return nil, err
		}
		kind := Filesystem
		switch string(b) {
		default:
			continue
		case "_BHRfS_M":
			if i > 0 {
				kind = Remains
			}
		case "!BHRfS_M":
			kind = Remains
		}
		return []Signature{{"btrfs", kind, superblock + magicOffset}}, nil
	}
	return nil, nil
}

// fat looks for the names that FAT writes into its boot sector.
func fat(ctx context.Context, r *reader) ([]Signature, error) {
	b, err := r.read(ctx, 0, 512)
	if err != nil || b == nil || b[510] != 0x55 || b[511] != 0xaa {
		return nil, err
	}
	for _, name := range []struct {
		offset int
		text   string
	}{{0x52, "FAT32   "}, {0x52, "MSWIN"}, {0x36, "FAT12   "}, {0x36, "FAT16   "}, {0x36, "MSDOS"}, {0x36, "FAT     "}} {
		if string(b[name.offset:][:len(name.text)]) == name.text {
			return []Signature{{"vfat", Filesystem, int64(name.offset)}}, nil
		}
	}
	return nil, nil
}

// zfs looks for an uberblock in the four labels of 256 KiB, two at each end:
// the second half of each is a ring of them, in steps of 1 KiB or more.
func zfs(ctx context.Context, r *reader) ([]Signature, error) {
	const label, ring = 256 << 10, 128 << 10
	end := r.size - r.size%label
	for _, start := range []int64{0, label, end - 2*label, end - label} {
		for offset := start + ring; offset < start+label; offset += 1 << 10 {
			b, err := r.read(ctx, offset, 8)
			if err != nil {
				return nil, err
			}
			if b != nil && (binary.LittleEndian.Uint64(b) == 0x00bab10c || binary.BigEndian.Uint64(b) == 0x00bab10c) {
				return []Signature{{"zfs_member", Member, offset}}, nil
			}
		}
	}
	return nil, nil
}
