package mount

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/podvol/podvol/mount/internal/statmount"
)

// Entry is one mount of a mount table. Entries are copies; the caller owns
// them.
type Entry struct {
	// ID and ParentID are the kernel's mount ids (mountinfo fields 1 and 2),
	// unique only while the mount exists.
	ID, ParentID int
	// Device is the st_dev of the file system, as unix.Mkdev makes it.
	Device uint64
	// Root is the directory of the file system that is shown at Target: "/"
	// for a whole file system, the bound directory for a bind mount. It ends in
	// "//deleted" once that directory has been removed.
	Root string
	// Target is the mount point.
	Target string
	// Source is the mount source as the file system reports it: a device,
	// server:/path, or any word.
	Source string
	// FSType is the file system's type, with its subtype ("fuse.sshfs").
	FSType string
	// Options are those of this mount ("ro", "nosuid", "relatime").
	Options []string
	// SuperOptions are those of the file system, common to all its mounts
	// ("rw", "size=1024k", "vers=4.2").
	SuperOptions []string
	// Propagation is the optional fields: "shared:1", "master:2"; empty for a
	// private mount.
	Propagation []string
}

// ReadOnly reports whether nothing can be written through this mount.
func (e Entry) ReadOnly() bool {
	return slices.Contains(e.Options, "ro") || slices.Contains(e.SuperOptions, "ro")
}

// Option returns the value of an option of the mount or of its file system, and
// whether it is there: "4.2" for "vers", "" for "nosuid". The mount's own come
// first; of several the last one counts, as it does for the kernel.
func (e Entry) Option(name string) (value string, ok bool) {
	for _, options := range [][]string{e.Options, e.SuperOptions} {
		for _, o := range slices.Backward(options) {
			if key, value, _ := strings.Cut(o, "="); key == name {
				return value, true
			}
		}
	}
	return "", false
}

// Table says what is mounted. It asks the mount table and not what is mounted,
// so a server that does not answer cannot block it; the one exception is a path
// given to At that leads through such a server's file system. All methods are
// safe for concurrent use.
type Table interface {
	// At returns the topmost mount whose target is path, and whether there is
	// one. Path must be absolute and is cleaned lexically; links in its parent
	// directories are followed, its last element is not looked at.
	//
	// Nothing but the table is touched where a mount has just this path, or
	// none has a path that ends in the same element. Else the parents are read
	// as links, one after the other, except those that are mount points
	// themselves. This may block where a parent lies inside a file system that
	// does not answer.
	At(path string) (Entry, bool, error)
	// BySource returns the mounts with just this source, oldest first.
	BySource(source string) ([]Entry, error)
	// ByDevice returns the mounts of the file system with this st_dev, oldest
	// first.
	ByDevice(device uint64) ([]Entry, error)
	// All returns every mount, oldest first.
	All() ([]Entry, error)
	// Subscribe returns a channel that receives after the table has changed.
	// Changes are coalesced: one value may stand for many. The channel is
	// closed when ctx ends or the table can no longer be watched.
	Subscribe(ctx context.Context) <-chan struct{}
}

// belower is implemented by tables that find what is mounted below a directory
// without reading every mount anew.
type belower interface {
	below(dir string) ([]Entry, error)
}

// Below returns the mounts whose target lies below dir, oldest first, but not
// one at dir itself. Dir must be absolute, clean and free of links. A table of
// this package's answers from memory and reads only those mounts anew; for
// others it is a part of All. The kernel gives no sign when a directory above a
// mount point is renamed, so that such a mount may be missing until the next
// change of the table: whoever deletes must not cross a mount either.
func Below(t Table, dir string) ([]Entry, error) {
	if b, ok := t.(belower); ok {
		return b.below(dir)
	}
	all, err := t.All()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(e Entry) bool { return !isStrictlyBelow(e.Target, dir) }), nil
}

// tabler is implemented by mounters that keep a table of their own.
type tabler interface {
	Table() Table
}

// TableOf returns the table that m acts on: m's own if it has a method
// Table() Table, as [HostMounter] and [FakeMounter] do. Any other mounter is
// taken to act on this process's mount namespace; its table keeps nothing open
// and reads /proc/self/mountinfo for each question, so that whoever asks often
// does so by [New], [KernelTable] or a mounter from [KeepTable]. It opens nothing: a table that cannot be
// read says so when it is asked, and the error is nil.
func TableOf(m Interface) (Table, error) {
	if t, ok := m.(tabler); ok {
		return t.Table(), nil
	}
	return kernelTable{}, nil
}

// KernelTable returns a table of this process's mount namespace, kept in memory
// and brought up to date before each answer. It holds two descriptors, which
// are closed when it is no longer used. The error is that of opening the mount
// table, so that a process without /proc learns of it at once.
//
// The table is that of the process. A thread that was given another mount
// namespace or root directory (unshare(2), chroot(2)) gets the same answers,
// slower.
func KernelTable() (Table, error) {
	f, err := openMountinfo(mountinfoPath)
	if err != nil {
		return nil, fmt.Errorf("open the mount table: %w", err)
	}
	return newIndex(statmount.Host{}), f.Close()
}

// mountWithID finds a mount in the mount table: statfs(2) would ask a server.
func mountWithID(table Table, id int) (Entry, error) {
	entries, err := table.All()
	if err != nil {
		return Entry{}, err
	}
	for _, e := range entries {
		if e.ID == id {
			return e, nil
		}
	}
	return Entry{}, fmt.Errorf("mount %d is not in the mount table", id)
}
