package diskusage

import (
	"errors"
	"io/fs"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/cpu"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/treewalk"
)

// blockSize is the unit of st_blocks, whatever the file system's own.
const blockSize = 512

type fileID struct{ dev, ino uint64 }

// measurement is what the counters of one tree have in common.
type measurement struct {
	tree     *treewalk.Tree
	dir      string
	budget   int64 // of inodes; 0: none
	counted  atomic.Int64
	counters []*counter

	mu   sync.Mutex
	seen map[fileID]struct{} // files with several links
}

// counter counts what one worker finds, on a cache line of its own, since
// processors wait for each other where they count together.
type counter struct {
	*measurement
	found Usage
	_     cpu.CacheLinePad
}

func (m *measurement) newCounter() *counter {
	c := &counter{measurement: m}
	m.counters = append(m.counters, c)
	return c
}

func (m *measurement) usage() (sum Usage) {
	for _, c := range m.counters {
		sum.Bytes += c.found.Bytes
		sum.Inodes += c.found.Inodes
	}
	return sum
}

// Visit counts a file. A directory is left to Enter, which has it open.
func (c *counter) Visit(dirfd int, name treewalk.Name, kind uint8) (enter bool, err error) {
	if kind == unix.DT_DIR {
		return true, nil
	}
	info, err := c.tree.Stat(dirfd, name)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, &fs.PathError{Op: "statx", Err: err}
	case !c.tree.Holds(info):
		return false, nil
	case info.IsDir():
		return true, nil
	}
	return false, c.count(info)
}

// Enter counts a directory.
func (c *counter) Enter(_ int, info treewalk.Info) error { return c.count(info) }

func (c *counter) count(i treewalk.Info) error {
	if i.Links > 1 && !i.IsDir() && !c.isNew(fileID{dev: i.Dev, ino: i.Ino}) {
		return nil
	}
	if c.budget > 0 && c.counted.Add(1) > c.budget {
		return &BudgetError{Path: c.dir, Budget: Budget{Inodes: c.budget}}
	}
	c.found.Bytes += int64(i.Blocks) * blockSize
	c.found.Inodes++
	return nil
}

// isNew reports whether a file with several names is seen for the first time.
func (m *measurement) isNew(id fileID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.seen[id]; ok {
		return false
	}
	m.seen[id] = struct{}{}
	return true
}
