package mount

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	// maxHolders is how many processes are named.
	maxHolders = 10
	// holdersLimit bounds the search, as /proc may have a million entries and
	// a process that is stuck in the kernel can hold up who reads its maps.
	holdersLimit = 3 * time.Second
)

// Holder is one user of a mount: a process, or the kernel itself.
type Holder struct {
	// PID is the process, by this process's /proc; 0 stands for the kernel, as
	// with a mount below.
	PID int
	// Command is the process's name, as ps(1) shows it; "kernel" for PID 0.
	Command string
	// How says by which means: "working directory /mnt/a", "root directory
	// /mnt/a", "program /mnt/a/bin/x", "open file /mnt/a/x", "mapped file
	// /mnt/a/lib.so", "mount below at /mnt/a/b", "swap file /mnt/a/s", "loop
	// device loop0 on /mnt/a/disk.img". Paths are as the process sees them.
	How string
}

func (h Holder) String() string { return fmt.Sprintf("%s (%d): %s", h.Command, h.PID, h.How) }

// heldBy lists holders in a sentence.
func heldBy(holders []Holder) string {
	var all []string
	for _, h := range holders {
		all = append(all, h.String())
	}
	return strings.Join(all, "; ")
}

// holders returns what holds a mount, as far as /proc shows it to this process
// within ctx and holdersLimit: of processes of other users only to who may
// trace them (ptrace(2)). The mount itself is not touched.
//
// Files are told by the mount id of their descriptors; directories, programs
// and mappings by their paths, since the kernel shows no more. In another mount
// namespace the copy of the mount counts that is in the same peer group: the
// kernel refuses to unmount a mount whose copies are in use where it would
// unmount them too (mount_namespaces(7)).
func (m *HostMounter) holders(ctx context.Context, held Entry) []Holder {
	ctx, cancel := context.WithTimeout(ctx, holdersLimit)
	defer cancel()
	found := &holderList{}
	// What was found by the end of ctx is kept; the error says just that.
	_ = m.calls.Do(ctx, callKey{held.Target, rungHolders}, func() error {
		entries, err := m.table.All()
		if err != nil {
			return err
		}
		search := holderSearch{proc: "/proc", sys: "/sys", held: held, own: entries, found: found}
		search.run(ctx)
		return nil
	})
	return found.list()
}

// rungHolders is the key of a search, in the place of a rung.
const rungHolders Rung = -1

// holderList collects holders, at most maxHolders and one of each process.
type holderList struct {
	mu  sync.Mutex
	all []Holder
}

// add reports whether there is room for more.
func (l *holderList) add(h Holder) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) < maxHolders {
		l.all = append(l.all, h)
	}
	return len(l.all) < maxHolders
}

func (l *holderList) list() []Holder {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Holder(nil), l.all...)
}
