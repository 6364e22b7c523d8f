//go:build unix

package subpath

import (
	"context"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// Open opens the file of any kind at path beneath root, with O_PATH: nothing is read, no
// device is opened and no FIFO waits. Path is slash separated and relative; "." is root
// itself. Where path ends at a mount, the mount is opened; an automount is triggered.
//
// The error is an *[InvalidPathError], *[EscapeError] or *[NotDirectoryError], or an
// [*os.PathError]: one that matches [os.ErrNotExist] if there is nothing, also at the end
// of a link, ELOOP after more than 40 links. Renames and mounts meanwhile are no error.
func Open(root *os.File, path string) (*os.File, error) {
	return system().open(root, path)
}

// OpenOrMake is [Open] that makes missing directories, with the mode of root, set-group-id
// and sticky bits included, whatever the umask, as the kubelet does. Their owner is the
// process's user; their group is the directory's above if that has the set-group-id bit.
// Existing ones are left as they are.
//
// Changes of the same elements meanwhile delay it, until ctx ends at most: *[BusyError].
// Other errors beyond Open's are *[ReadOnlyError], *[DanglingError] for a link to nothing,
// and an [*os.PathError] if a directory cannot be made; some of them may have been.
func OpenOrMake(ctx context.Context, root *os.File, path string) (*os.File, error) {
	return system().openOrMake(ctx, root, path)
}

// MakePoint makes what something can be mounted on at path beneath root, if it
// does not exist: a directory of mode 0755, or an empty file of mode 0644.
// Directories on the way are made with 0755. If root or one of these has the
// set-group-id bit, they inherit it. It is success if there is a directory
// already, or for dir == false anything else than a directory; a link is
// followed.
//
// The error is one of [OpenOrMake]'s, or a *[KindError].
func MakePoint(ctx context.Context, root *os.File, path string, dir bool) error {
	return system().makePoint(ctx, root, path, dir)
}

func (k kernel) open(root *os.File, p string) (*os.File, error) {
	p, err := clean(p)
	if err != nil {
		return nil, err
	}
	defer runtime.KeepAlive(root)
	fd, err := k.resolve(place{fd: int(root.Fd()), volume: root.Name(), path: p})
	if err != nil {
		return nil, err
	}
	return newFile(fd, root, p), nil
}

func newFile(fd int, root *os.File, p string) *os.File {
	return os.NewFile(uintptr(fd), filepath.Join(root.Name(), p))
}

// place is a clean path beneath a root.
type place struct {
	fd           int
	volume, path string
}

func (p place) failed(op string, err error) error {
	return &os.PathError{Op: op, Path: filepath.Join(p.volume, p.path), Err: err}
}

func stat(fd int) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := eintr.Do(func() error { return unix.Fstat(fd, &st) })
	return st, err
}

func isDir(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }
