package format

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

const (
	// headZeroes and tailZeroes are how much of a device must be zeroes at its
	// start and its end before it counts as blank.
	headZeroes = 4 << 20
	tailZeroes = 1 << 20
)

// Kind says what a signature stands for.
type Kind string

// The kinds.
const (
	// Filesystem is something that could be mounted.
	Filesystem Kind = "file system"
	// PartitionTable divides the device, or did.
	PartitionTable Kind = "partition table"
	// Member is part of something stacked on the device: RAID, volume
	// management, encryption, a cache, an object store, or swap.
	Member Kind = "member"
	// Remains are copies of a superblock whose first is gone, and file systems
	// whose making was never finished.
	Remains Kind = "remains"
)

// Signature is something recognised on a device.
type Signature struct {
	// Type is what blkid(8) calls it: "ext4", "LVM2_member", "gpt".
	Type string
	Kind Kind
	// Offset is where its magic number lies, in bytes; -1 where only blkid(8)
	// knows it.
	Offset int64
}

// Content has the signatures found on a device. Its zero value is a blank one.
type Content struct {
	// Signatures are all that were recognised, in no order to rely on.
	Signatures []Signature
	// Data tells that something is not zero in the first 4 MiB or the last
	// 1 MiB, the first of it at DataOffset, in bytes. It is looked for only
	// where there is no signature.
	Data       bool
	DataOffset int64
}

// Blank reports whether nothing was found.
func (c Content) Blank() bool { return len(c.Signatures) == 0 && !c.Data }

// Filesystem returns the type of the one file system on the device. It is false
// where there is none, or anything beside it.
func (c Content) Filesystem() (string, bool) {
	if len(c.Signatures) != 1 || c.Signatures[0].Kind != Filesystem {
		return "", false
	}
	return c.Signatures[0].Type, true
}

// has reports whether a file system was found: an fstype, or any where fstype is
// empty.
func (c Content) has(fstype string) bool {
	for _, s := range c.Signatures {
		if s.Kind == Filesystem && (fstype == "" || s.Type == fstype) {
			return true
		}
	}
	return false
}

// String names the content: "ext4 (file system at byte 1080)".
func (c Content) String() string {
	if c.Blank() {
		return "nothing"
	}
	var found []string
	for _, s := range c.Signatures {
		at := fmt.Sprintf("at byte %d", s.Offset)
		if s.Offset < 0 {
			at = "by blkid"
		}
		found = append(found, fmt.Sprintf("%s (%s %s)", s.Type, s.Kind, at))
	}
	if c.Data {
		found = append(found, fmt.Sprintf("data of an unknown kind at byte %d", c.DataOffset))
	}
	return strings.Join(found, ", ")
}

// ReadError is a place of a device that could not be read.
type ReadError struct {
	Offset int64 // in bytes
	Err    error
}

func (e *ReadError) Error() string { return fmt.Sprintf("read at byte %d: %v", e.Offset, e.Err) }
func (e *ReadError) Unwrap() error { return e.Err }

// Inspect looks for signatures on a device of size bytes. Where there is none it
// looks for data in the first 4 MiB and the last 1 MiB. It only reads. A place
// that cannot be read, or that ends early, is a *[ReadError]. An end of ctx is
// seen between two reads and is the error's cause.
//
// The offsets of magic numbers come from the kernel's headers and util-linux's
// libblkid, 2.41.
func Inspect(ctx context.Context, device io.ReaderAt, size int64) (Content, error) {
	r := &reader{device: device, size: size}
	var found Content
	for _, s := range signatures(size) {
		ok, err := s.at(ctx, r)
		if err != nil {
			return Content{}, err
		}
		if ok {
			found.Signatures = append(found.Signatures, Signature{s.name, s.kind, s.offset})
		}
	}
	for _, look := range []func(context.Context, *reader) ([]Signature, error){ext, xfs, btrfs, fat, zfs} {
		more, err := look(ctx, r)
		if err != nil {
			return Content{}, err
		}
		found.Signatures = append(found.Signatures, more...)
	}
	found.Signatures = withoutEchoes(found.Signatures)
	if len(found.Signatures) > 0 {
		return found, nil
	}
	var err error
	found.DataOffset, found.Data, err = firstData(ctx, r)
	return found, err
}

// withoutEchoes drops parts of a recognised file system: the boot sector in its
// first sector, which looks like a partition table, and the copies of its
// superblock.
func withoutEchoes(all []Signature) []Signature {
	return slices.DeleteFunc(slices.Clone(all), func(s Signature) bool {
		return slices.ContainsFunc(all, func(owner Signature) bool {
			if owner.Kind != Filesystem {
				return false
			}
			return s.Type == "dos" && owner.Offset < 512 || s.Kind == Remains && s.Type == owner.Type
		})
	})
}

// firstData returns the first byte that is not zero where all should be.
func firstData(ctx context.Context, r *reader) (offset int64, found bool, err error) {
	head := min(r.size, headZeroes)
	tail := max(head, r.size-tailZeroes)
	zeroes := make([]byte, windowSize)
	for _, part := range [][2]int64{{0, head}, {tail, r.size}} {
		for at := part[0]; at < part[1]; at += windowSize {
			b, err := r.read(ctx, at, int(min(windowSize, part[1]-at)))
			if err != nil {
				return 0, false, err
			}
			if bytes.Equal(b, zeroes[:len(b)]) {
				continue
			}
			i := bytes.IndexFunc(b, func(c rune) bool { return c != 0 })
			return at + int64(i), true, nil
		}
	}
	return 0, false, nil
}

// windowSize is how much is read at once, aligned to itself, so that the many
// signatures at the start cost few reads.
const windowSize = 128 << 10

// reader reads a device in windows, of which it keeps the last few.
type reader struct {
	device io.ReaderAt
	size   int64
	kept   [4]window
	oldest int
}

type window struct {
	offset int64
	data   []byte
}

// read returns n bytes from offset, which the caller must not keep. Beyond the
// end of the device it returns nothing.
func (r *reader) read(ctx context.Context, offset int64, n int) ([]byte, error) {
	if offset < 0 || offset+int64(n) > r.size {
		return nil, nil
	}
	base := offset - offset%windowSize
	if offset+int64(n) > base+windowSize { // across a border: rare, small
		return r.load(ctx, offset, n)
	}
	for _, w := range r.kept {
		if w.data != nil && w.offset == base {
			return w.data[offset-base:][:n], nil
		}
	}
	data, err := r.load(ctx, base, int(min(windowSize, r.size-base)))
	if err != nil {
		return nil, err
	}
	r.kept[r.oldest] = window{base, data}
	r.oldest = (r.oldest + 1) % len(r.kept)
	return data[offset-base:][:n], nil
}

func (r *reader) load(ctx context.Context, offset int64, n int) ([]byte, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	data := make([]byte, n)
	got, err := r.device.ReadAt(data, offset)
	if got == n { // io.ReaderAt may say EOF at the very end
		return data, nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return nil, &ReadError{offset + int64(got), err}
}
