// Package layers unpacks the layers of images into directories of their own, and merges
// these into the tree that a pod sees.
//
//   - A layer is a stranger's tar. It is unpacked by directory descriptors, one name at a
//     time, and no link is followed: nothing that it says leads out of its directory.
//   - Files, directories, symbolic links and hard links inside the layer are made; devices,
//     pipes and everything else are refused. Bits such as setuid and extended attributes
//     are left out: the volume is mounted nosuid and noexec.
//   - What a layer hides of the ones below is kept in its [Layer], not in the directory.
//   - Merging links the files: the trees of all images that have a layer share its files,
//     on disk and in memory, on every file system with hard links and without a limit to
//     the number of layers.
package layers

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/volume"
)

// Causes of refusals.
const (
	ErrHostile  volume.Cause = "the layer has what a volume must not have"
	ErrTooLarge volume.Cause = "the image is larger than this node allows"
	ErrNoSpace  volume.Cause = "the image leaves too little space on the node's disk"
)

// Layer is what is known of an unpacked layer.
type Layer struct {
	// Digest is that of the layer as it is sent. DiffID is that of the tar in it.
	Digest string `json:"digest"`
	DiffID string `json:"diffID"`
	// File says that the layer is one file, with the name [FileName] in its directory.
	File bool `json:"file,omitempty"`
	// Bytes and Entries are its size.
	Bytes   int64 `json:"bytes"`
	Entries int64 `json:"entries"`
	// Whiteouts are paths that are hidden of the layers below, Opaque directories whose
	// content there is.
	Whiteouts []string `json:"whiteouts,omitempty"`
	Opaque    []string `json:"opaque,omitempty"`
	// Implied are directories that the tar does not have, above others that it has.
	Implied []string `json:"implied,omitempty"`
}

// FileName is the name of the file of a layer that is one.
const FileName = "blob"

// Budget bounds what the layers of one image bring, together. It is safe for concurrent
// use.
type Budget struct {
	// Bytes and Entries are the limits.
	Bytes, Entries int64
	// Reserve is the part of the disk, in percent, that has to stay free.
	Reserve int64

	bytes, entries, looked atomic.Int64
}

// lookEvery is how much is written between two looks at the disk's free space.
const lookEvery = 32 << 20

// take notes what is about to be written below dir.
func (b *Budget) take(dir *os.File, bytes, entries int64) error {
	n := b.bytes.Add(bytes)
	if n > b.Bytes || bytes > b.Bytes {
		return fmt.Errorf("%w: its files have more than %d bytes", ErrTooLarge, b.Bytes)
	}
	if b.entries.Add(entries) > b.Entries {
		return fmt.Errorf("%w: it has more than %d entries", ErrTooLarge, b.Entries)
	}
	weight := n + b.entries.Load()*4096 // as an empty file costs, too
	if last := b.looked.Load(); weight-last < lookEvery && last > 0 || !b.looked.CompareAndSwap(last, max(weight, 1)) {
		return nil
	}
	return b.look(dir, bytes)
}

// look refuses to write so many bytes where the disk would be full.
func (b *Budget) look(dir *os.File, bytes int64) error {
	var s unix.Statfs_t
	if err := unix.Fstatfs(int(dir.Fd()), &s); err != nil {
		return fmt.Errorf("statfs %s: %w", dir.Name(), err)
	}
	if free := int64(s.Bavail)*s.Bsize - bytes; free < int64(s.Blocks)*s.Bsize/100*b.Reserve {
		return fmt.Errorf("%w: less than %d%% of it would be free", ErrNoSpace, b.Reserve)
	}
	if s.Files > 0 && s.Ffree < s.Files/100*uint64(max(0, b.Reserve)) {
		return fmt.Errorf("%w: less than %d%% of its inodes are free", ErrNoSpace, b.Reserve)
	}
	return nil
}

// hostile is a refusal of one entry of a tar.
func hostile(name, format string, args ...any) error {
	return fmt.Errorf("%w: %.200q: %s", ErrHostile, name, fmt.Sprintf(format, args...))
}

// Count adds a layer that is there already.
func (b *Budget) Count(l Layer) error {
	if b.bytes.Add(l.Bytes) > b.Bytes || b.entries.Add(l.Entries) > b.Entries {
		return fmt.Errorf("%w: its files have more than %d bytes, or there are more than %d", ErrTooLarge, b.Bytes, b.Entries)
	}
	return nil
}
