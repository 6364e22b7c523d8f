package layers

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/openat"
)

// attributes are what a tar, or another directory, says of a directory or file.
type attributes struct {
	mode     uint32 // permission bits
	uid, gid int
	mtime    unix.Timespec
}

// The bits of a mode that are kept.
const (
	keptOfFiles       = 0o777
	keptOfDirectories = 0o777 | unix.S_ISVTX
)

// maxDepth bounds the directories in one another, and maxPath the bytes of a path.
const (
	maxDepth = 255
	maxPath  = 4095
)

// tree is a directory that is being filled. All paths are relative and clean, and no link
// in them is followed.
type tree struct {
	top *os.File
	// at is the directory that was used last, by its path; nil: none.
	at     *os.File
	atPath string
	// directories are to have attributes once all is in them.
	directories map[string]attributes
	// implied were made as parents, and have not been given attributes.
	implied map[string]bool
	// imply, if not nil, may refuse a directory before it is made as a parent.
	imply func(p string) error
}

func newTree(top *os.File) *tree {
	return &tree{top: top, directories: make(map[string]attributes), implied: make(map[string]bool)}
}

func (t *tree) close() {
	if t.at != nil {
		t.at.Close()
		t.at = nil
	}
}

// parent returns the directory in which a path lies, with missing ones made, and the
// path's last name. The directory is valid until the next call.
func (t *tree) parent(p string) (*os.File, string, error) {
	dir, name := path.Split(p)
	d, err := t.directory(strings.TrimSuffix(dir, "/"), true)
	return d, name, err
}

// directory opens a directory of the tree; it is valid until the next call. A missing one
// is made if make is set.
func (t *tree) directory(p string, make bool) (*os.File, error) {
	if p == "" || p == "." {
		return t.top, nil
	}
	if t.at != nil && p == t.atPath {
		return t.at, nil
	}
	d, names := t.top, strings.Split(p, "/")
	for i, name := range names {
		next, err := openat.File(d, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		if errors.Is(err, unix.ENOENT) && make {
			if err = t.makeImplied(d, name, strings.Join(names[:i+1], "/")); err == nil {
				next, err = openat.File(d, name, unix.O_PATH|unix.O_DIRECTORY, 0)
			}
		}
		if d != t.top {
			d.Close()
		}
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
			return nil, hostile(p, "it leads through %q, which is no directory", strings.Join(names[:i+1], "/"))
		}
		if err != nil {
			return nil, err
		}
		d = next
	}
	t.close()
	t.at, t.atPath = d, p
	return d, nil
}

func (t *tree) makeImplied(parent *os.File, name, p string) error {
	if t.imply != nil {
		if err := t.imply(p); err != nil {
			return err
		}
	}
	t.implied[p] = true
	return unix.Mkdirat(int(parent.Fd()), name, 0o700)
}

// finish gives directories their attributes, the inner ones first. Those that were removed
// meanwhile are left out.
func (t *tree) finish() error {
	for p := range t.implied {
		if _, known := t.directories[p]; !known {
			t.directories[p] = attributes{mode: 0o755}
		}
	}
	paths := slices.Sorted(maps.Keys(t.directories))
	slices.Reverse(paths)
	for _, p := range paths {
		if p == "." {
			continue
		}
		parent, err := t.directory(path.Dir(p), false)
		if isMissing(err) || err == nil && !isDirectory(parent, path.Base(p)) {
			continue
		}
		if err == nil {
			err = t.directories[p].apply(parent, path.Base(p))
		}
		if err != nil {
			return err
		}
	}
	top, has := t.directories["."]
	if !has {
		top.mode = 0o755
	}
	return top.apply(t.top, ".")
}

// isMissing reports whether an error of directory says that there is none.
func isMissing(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, ErrHostile) }

// apply sets the attributes of a directory or file that is known to be no link.
func (a attributes) apply(parent *os.File, name string) error {
	fd := int(parent.Fd())
	err := a.own(fd, name)
	if err == nil {
		err = unix.Fchmodat(fd, name, a.mode, 0)
	}
	if err == nil && a.mtime != (unix.Timespec{}) {
		err = a.date(fd, name)
	}
	if err != nil {
		return &fs.PathError{Op: "set the attributes of", Path: path.Join(parent.Name(), name), Err: err}
	}
	return nil
}

// own gives a file to its owner. Where this process may not, or its user namespace lacks the id,
// the file stays the user's who unpacks it.
func (a attributes) own(fd int, name string) error {
	err := unix.Fchownat(fd, name, a.uid, a.gid, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	return err
}

func (a attributes) date(fd int, name string) error {
	return unix.UtimesNanoAt(fd, name, []unix.Timespec{a.mtime, a.mtime}, unix.AT_SYMLINK_NOFOLLOW)
}
