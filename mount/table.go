package mount

import (
	"context"
	"slices"
	"strings"

	"github.com/podvol/podvol/util/pathin"
)

// Entry is one mount of a mount table. Entries are copies. The caller owns them.
type Entry struct {
	// ID and ParentID are the kernel's mount ids (mountinfo fields 1 and 2),
	// unique only while the mount exists.
	ID, ParentID int
	// Device is the st_dev of the file system, as unix.Mkdev makes it.
	Device uint64
	// Root is the directory of the file system that is shown at Target: "/" for a whole
	// file system, the bound directory for a bind mount. It ends in "//deleted" once that
	// directory has been removed.
	Root string
	// Target is the mount point.
	Target string
	// Source is the mount source as the file system reports it: a device,
	// server:/path, or any word.
	Source string
	// FSType is the file system's type, with its subtype ("fuse.sshfs").
	FSType string
	// Options are the options of this mount ("ro", "nosuid", "relatime").
	Options []string
	// SuperOptions are the options of the file system, common to all its mounts ("rw",
	// "size=1024k", "vers=4.2").
	SuperOptions []string
	// Propagation has the optional fields: "shared:1", "master:2"; empty for a private
	// mount.
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

// Table is a mount table. It reads the table and not the mounted file systems, so a
// server that does not answer cannot block it. There is one exception: a path given to At
// that leads through such a server's file system. All methods are safe for concurrent
// use.
type Table interface {
	// At returns the topmost mount whose target is path, and whether there is one. path
	// must be absolute and is cleaned lexically. Links in its parent directories are
	// followed, but not a link at its end.
	//
	// At reads only the table if a mount has exactly this path, or if no mount has a path
	// that ends in the same element. Otherwise it reads the parents as links, one after
	// the other, except parents that are mount points themselves. This may block if a
	// parent lies inside a file system that does not answer.
	At(path string) (Entry, bool, error)
	// BySource returns the mounts with exactly this source, oldest first.
	BySource(source string) ([]Entry, error)
	// ByDevice returns the mounts of the file system with this st_dev, oldest
	// first.
	ByDevice(device uint64) ([]Entry, error)
	// All returns every mount, oldest first.
	All() ([]Entry, error)
	// Subscribe returns a channel that receives after the table has changed. One value
	// may stand for many changes. The channel is closed when ctx ends or the table can no
	// longer be watched.
	Subscribe(ctx context.Context) <-chan struct{}
}

// belower is implemented by tables that find the mounts below a directory without
// reading every mount anew.
type belower interface {
	Below(dir string) ([]Entry, error)
}

// Below returns the mounts whose target lies below dir, oldest first, but not one at dir
// itself. dir must be absolute, clean and free of links.
//
//   - A table of this package answers from memory and reads only those mounts anew. For
//     other tables Below filters All.
//   - The kernel gives no sign when a directory above a mount point is renamed. Such a
//     mount may be missing until the next change of the table. So code that deletes must
//     not cross a mount either.
func Below(t Table, dir string) ([]Entry, error) {
	if b, ok := t.(belower); ok {
		return b.Below(dir)
	}
	all, err := t.All()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(e Entry) bool { return !pathin.Strictly(dir, e.Target) }), nil
}
