package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// An entry can be deleted even when the disk has become full: its deletion may be the
// step that makes room. So blocks are allocated beyond the lines for all that each
// entry will still need, its deletion included. A change that deletes no entry is
// refused when the disk has no blocks left for that. File systems that cannot allocate
// ahead give no such promise.

// need is how many bytes an entry will need at most.
type need struct {
	// end: that its value is moved, which may lengthen its key, that the old key is
	// deleted, and the new one.
	end int64
	// notes: the first note, which is part of getting it.
	notes int64
}

func needOf(key string, value json.RawMessage) need {
	return need{end: int64(len(value) + 3*len(key) + 512), notes: 512}
}

func (n need) sum() int64 { return n.end + n.notes }

// after returns what a line's entry needs after the line, by what it needed before.
func (n need) after(l line) need {
	switch size := int64(len(l.Key) + len(l.Value) + 64); {
	case l.Op == opPut:
		return needOf(l.Key, l.Value)
	case l.Op == opDelete:
		return need{}
	case size <= n.notes:
		n.notes -= size
	}
	return n
}

// ends reports whether a change ends an entry.
func (c *change) ends() bool {
	return slices.ContainsFunc(c.lines, func(l line) bool { return l.Op == opDelete })
}

func sizeOf(changes []*change) (size int64) {
	for _, c := range changes {
		size += int64(len(c.text))
	}
	return size
}

// roomOf returns what all entries will need once these changes are made, beyond what
// they need now.
func (j *Journal) roomOf(changes []*change) (more int64) {
	needs := make(map[string]need)
	for _, c := range changes {
		for _, l := range c.lines {
			before, seen := needs[l.Key]
			if !seen {
				before = j.needs[l.Key]
			}
			needs[l.Key] = before.after(l)
			more += needs[l.Key].sum() - before.sum()
		}
	}
	return more
}

// updateNeeds updates what entries need, after changes that were written.
func (j *Journal) updateNeeds(changes []*change) {
	j.room += j.roomOf(changes)
	for _, c := range changes {
		for _, l := range c.lines {
			if after := j.needs[l.Key].after(l); after.end > 0 {
				j.needs[l.Key] = after
			} else {
				delete(j.needs, l.Key)
			}
		}
	}
}

// reserveAll allocates what all entries need. On a full disk it does nothing, and the
// next change that deletes no entry is refused.
func (j *Journal) reserveAll(held []Entry) {
	j.needs, j.room = make(map[string]need, len(held)), 0
	for _, e := range held {
		j.needs[e.Key] = needOf(e.Key, e.Value)
		j.room += j.needs[e.Key].sum()
	}
	_ = j.reserve(j.end + j.room)
}

// admit returns the changes for which there is room; the others have failed.
// Changes that end an entry always have it: their room has been kept.
func (j *Journal) admit(changes []*change) []*change {
	if !slices.ContainsFunc(changes, func(c *change) bool { return !c.ends() }) ||
		j.reserve(j.end+sizeOf(changes)+j.room+j.roomOf(changes)) == nil {
		return changes
	}
	admitted := make([]*change, 0, len(changes))
	size, tooMuch := j.end+j.room, int64(math.MaxInt64)
	for _, c := range changes {
		after := size + int64(len(c.text)) + j.roomOf([]*change{c})
		if !c.ends() && after < tooMuch && j.reserve(after) != nil {
			tooMuch = after // not asked for again: a full disk is slow to refuse
		}
		if !c.ends() && after >= tooMuch {
			c.err = &Error{Op: "write", Path: j.path, Err: j.errFull()}
			continue
		}
		size = after
		admitted = append(admitted, c)
	}
	return admitted
}

func (j *Journal) errFull() error {
	dir := filepath.Dir(j.path)
	return fmt.Errorf("%w; each entry needs room for its removal too: free some (df and df -i on %s)", unix.ENOSPC, dir)
}

// reserve allocates the file's blocks up to a size, and some more where the disk has
// them, so that this is rare.
func (j *Journal) reserve(size int64) error {
	if size <= j.reserved {
		return nil
	}
	generous := (size/j.ahead + 1) * j.ahead
	for _, to := range []int64{generous, size} {
		err := j.allocate(j.file, j.end, to-j.end)
		switch {
		case err == nil || !isFull(err):
			j.reserved = to
			return nil
		case to == size:
			return err
		}
	}
	return nil
}

func isFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG)
}

// allocateBlocks is fallocate(2), which leaves the file's size as it is.
func allocateBlocks(file *os.File, offset, size int64) error {
	return eintr.Do(func() error { return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, offset, size) })
}

// cut removes the rest of the file beyond the lines, which a write leaves that
// has failed midway. Zeros need no room where there is something already.
func (j *Journal) cut() error {
	info, err := j.file.Stat()
	if err != nil {
		return err
	}
	if info.Size() <= j.end {
		return nil
	}
	if _, err := j.writeAt(j.file, make([]byte, info.Size()-j.end), j.end); err != nil {
		if err := j.file.Truncate(j.end); err != nil {
			return err
		}
		j.zeroed, j.reserved = j.end, 0
	}
	return j.flush(j.file)
}
