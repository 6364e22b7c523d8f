package kubeletroot

import (
	"cmp"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// tree reads a directory and all below it.
type tree struct {
	left int // names that may be read yet
	// full: there were more.
	full bool
}

// entry is a name in a directory, as lstat(2) sees it.
type entry struct {
	name string
	stat unix.Stat_t
}

func (e entry) isDir() bool { return e.stat.Mode&unix.S_IFMT == unix.S_IFDIR }

// errElsewhere is for entries that are not opened: a link, a mount, or no directory.
var errElsewhere = errors.New("a link, a mount or a file")

// openRoot follows links: the root, and what lies right below it, may be elsewhere.
func openRoot(path string) (*os.File, error) {
	return os.OpenFile(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// open opens a directory that lies in another one itself.
func open(dir *os.File, name string) (*os.File, error) {
	return openAt(dir, name, unix.O_DIRECTORY)
}

func openAt(dir *os.File, name string, flags uint64) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_CLOEXEC | unix.O_NOFOLLOW | flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV}
	fd, err := eintr.Get(func() (int, error) { return unix.Openat2(int(dir.Fd()), name, &how) })
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR):
		return nil, errElsewhere
	case err != nil:
		return nil, &os.PathError{Op: "open", Path: filepath.Join(dir.Name(), name), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(dir.Name(), name)), nil
}

// entries reads a directory, in the order of names. What vanishes is left out.
func (t *tree) entries(dir *os.File) (found []entry, err error) {
	for t.left > 0 {
		names, err := dir.Readdirnames(min(t.left, 1024))
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return found, err
		}
		t.left -= len(names)
		for _, name := range names {
			e := entry{name: name}
			if err := statAt(dir, name, &e.stat); err == nil {
				found = append(found, e)
			}
		}
	}
	t.full = t.full || t.left <= 0
	slices.SortFunc(found, func(a, b entry) int { return cmp.Compare(a.name, b.name) })
	return found, nil
}

// statAt never asks the server of a mount at the name.
func statAt(dir *os.File, name string, into *unix.Stat_t) error {
	var st unix.Statx_t
	err := eintr.Do(func() error {
		return unix.Statx(int(dir.Fd()), name, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT|unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &st)
	})
	if err != nil {
		return err
	}
	into.Mode, into.Uid, into.Gid, into.Size = uint32(st.Mode), st.Uid, st.Gid, int64(st.Size)
	into.Ino, into.Mtim.Sec = st.Ino, st.Mtime.Sec
	return nil
}

// below reads a directory in another one; what is not one, or has vanished, has no entries.
func (t *tree) below(dir *os.File, name string, each func(*os.File, entry)) error {
	in, err := open(dir, name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, errElsewhere) {
		return nil
	}
	if err != nil {
		return err
	}
	defer in.Close()
	found, err := t.entries(in)
	for _, e := range found {
		each(in, e)
	}
	return err
}

// maxFile is how much of a file is read, in bytes.
const maxFile = 64 << 10

var errNoFile = errors.New("it is no regular file")

// readFile reads a regular file in a directory. Nothing else is opened for it: a FIFO
// would wait, and a device may act.
func readFile(dir *os.File, name string) ([]byte, error) {
	seen, err := openAt(dir, name, unix.O_PATH)
	if errors.Is(err, errElsewhere) {
		return nil, errNoFile
	}
	if err != nil {
		return nil, err
	}
	defer seen.Close()
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Fstat(int(seen.Fd()), &st) }); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errNoFile
	}
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(seen.Fd())), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}
