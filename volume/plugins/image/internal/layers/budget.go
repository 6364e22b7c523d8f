package layers

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Budget bounds what the layers of one image bring, together. It is safe for concurrent
// use.
type Budget struct {
	// Bytes and Entries are the limits.
	Bytes, Entries int64
	// Reserve is the part of the disk, in percent, that has to stay free.
	Reserve int64

	bytes, entries, paths, headers, looked atomic.Int64
}

// maxPathBytes bounds the paths that are kept in memory of one image. A hundred thousand
// directories with long names have a sixth of it.
const maxPathBytes = 64 << 20

// keep counts the bytes of paths that are kept in memory.
func (b *Budget) keep(bytes int64) error {
	if b.paths.Add(bytes) > maxPathBytes {
		return fmt.Errorf("%w: the paths of its directories have more than %d bytes", ErrTooLarge, maxPathBytes)
	}
	return nil
}

// perEntry is what the headers of an entry may have on average, with the names and
// attributes of their extensions, and firstHeaders what a small image may have beside.
const (
	perEntry     = 4 << 10
	firstHeaders = 1 << 20
)

// head counts the bytes of headers: those that extend a header can follow each other
// without end, and without an entry.
func (b *Budget) head(bytes int64) error {
	if most := firstHeaders + b.Entries*perEntry; b.headers.Add(bytes) > most {
		return fmt.Errorf("%w: the headers of its entries have more than %d bytes", ErrTooLarge, most)
	}
	return nil
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

// Count adds a layer that is there already.
func (b *Budget) Count(l Layer) error {
	if b.bytes.Add(l.Bytes) > b.Bytes || b.entries.Add(l.Entries) > b.Entries {
		return fmt.Errorf("%w: its files have more than %d bytes, or there are more than %d", ErrTooLarge, b.Bytes, b.Entries)
	}
	return b.keep(l.PathBytes)
}
