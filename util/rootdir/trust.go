package rootdir

import (
	"io/fs"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// trust is the ids that may own, or change, the program's files.
type trust struct {
	uids, gids []uint32
	above      unix.Stat_t // of "/"
}

func newTrust(top *os.File) (trust, error) {
	st, err := stat(top)
	if err != nil {
		return trust{}, err
	}
	t := trust{above: st}.strictly()
	t.uids, t.gids = append(t.uids, st.Uid), append(t.gids, st.Gid)
	return t, nil
}

// strictly is for the end of the way, and files below.
func (t trust) strictly() trust {
	t.uids = []uint32{0, uint32(os.Geteuid())}
	t.gids = []uint32{0, uint32(os.Getegid())}
	return t
}

func (t trust) owner(uid uint32) bool { return slices.Contains(t.uids, uid) }

func (t trust) checkDir(dir *os.File) error {
	st, err := stat(dir)
	if err != nil {
		return err
	}
	return t.check(dir.Name(), st)
}

// check judges a directory.
func (t trust) check(path string, st unix.Stat_t) error {
	if !t.owner(st.Uid) {
		return foreign(path, st.Uid)
	}
	shared := st.Mode&0o002 != 0 || st.Mode&0o020 != 0 && !slices.Contains(t.gids, st.Gid)
	if shared && st.Mode&unix.S_ISVTX == 0 {
		return open(path, st.Uid, st.Mode)
	}
	return nil
}

func stat(file *os.File) (st unix.Stat_t, err error) {
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return st, &fs.PathError{Op: "stat", Path: file.Name(), Err: err}
	}
	return st, nil
}

func kindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return "symbolic link"
	case unix.S_IFREG:
		return "file"
	case unix.S_IFDIR:
		return "directory"
	case unix.S_IFIFO:
		return "named pipe"
	}
	return "special file"
}
