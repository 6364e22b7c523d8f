package rootdir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/openat"
)

// OpenDirAt opens a directory in one that [Open], [Make] or it has opened; it can
// be read. A link or anything else there, or one that is not to be relied on, is
// an *[Error]; none at all matches [fs.ErrNotExist].
func OpenDirAt(parent *os.File, name string) (*os.File, error) {
	if err := CheckDirAt(parent, name); err != nil {
		return nil, err
	}
	dir, err := openat.Dir(parent, name)
	if err != nil {
		return nil, err
	}
	if err := (trust{}).strictly().checkDir(dir); err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// MakeDirAt is [OpenDirAt], and makes the directory where it is missing, with
// these permissions, less the umask.
func MakeDirAt(parent *os.File, name string, perm fs.FileMode) (*os.File, error) {
	if err := mkdir(parent, name, perm); err != nil {
		return nil, err
	}
	return OpenDirAt(parent, name)
}

// CheckDirAt says of what [OpenDirAt] would open whether it would, for which no
// permission to read it is needed. None at all matches [fs.ErrNotExist].
func CheckDirAt(parent *os.File, name string) error {
	path := filepath.Join(parent.Name(), name)
	st, err := lstatAt(parent, name)
	if err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return misplaced(path, st.Uid, kindOf(st.Mode), "directory")
	}
	return trust{}.strictly().check(path, st)
}

// CheckFileAt says of what [OpenFileAt] would open whether it would. None at all
// matches [fs.ErrNotExist].
func CheckFileAt(parent *os.File, name string) error {
	st, err := lstatAt(parent, name)
	if err != nil {
		return err
	}
	return checkFile(filepath.Join(parent.Name(), name), st)
}

// OpenFileAt opens a regular file by flags and permissions of open(2), which may
// make it. Anything else of that name, one of another user's, and one that has a
// second name besides is an *[Error], and stays as it is: flags must not truncate.
// One that is removed meanwhile matches [fs.ErrNotExist].
func OpenFileAt(parent *os.File, name string, flags int, perm fs.FileMode) (*os.File, error) {
	if err := CheckFileAt(parent, name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	file, err := openat.File(parent, name, flags|unix.O_NONBLOCK, perm)
	if err != nil {
		return nil, err
	}
	st, err := stat(file)
	if err == nil {
		err = checkFile(file.Name(), st)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func checkFile(path string, st unix.Stat_t) error {
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return misplaced(path, st.Uid, kindOf(st.Mode), "file")
	case !(trust{}).strictly().owner(st.Uid):
		return foreign(path, st.Uid)
	case st.Nlink == 0:
		return &fs.PathError{Op: "open", Path: path, Err: unix.ENOENT}
	case st.Nlink > 1:
		return misplaced(path, st.Uid, "second name of another file", "file of its own")
	}
	return nil
}

func lstatAt(parent *os.File, name string) (st unix.Stat_t, err error) {
	err = eintr.Do(func() error { return unix.Fstatat(int(parent.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) })
	if err != nil {
		return st, &fs.PathError{Op: "stat", Path: filepath.Join(parent.Name(), name), Err: err}
	}
	return st, nil
}
