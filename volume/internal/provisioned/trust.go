package provisioned

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// trust refuses a bookkeeping that somebody else has made, who would have
// written its marks, and returns whose it is. Whoever may write in the base can
// put one there.
func (b *base) trust(top *os.File) (owner uint32, err error) {
	st, err := stat(top)
	if err != nil {
		return 0, err
	}
	ours := b.agent
	if st.Uid != ours {
		if ours, err = userOn(top); err != nil {
			return 0, err
		}
	}
	return ours, checkOwner(top, ours)
}

// checkOwner refuses a directory that is not this user's, or in which others
// can write.
func checkOwner(dir *os.File, ours uint32) error {
	st, err := stat(dir)
	switch {
	case err != nil:
		return err
	case st.Uid != ours:
		return &ForeignError{Path: dir.Name(), Owner: st.Uid, Ours: ours}
	case st.Mode&0o022 != 0:
		return &ExposedError{Path: dir.Name(), Mode: st.Mode & 0o7777}
	}
	return nil
}

func stat(dir *os.File) (st unix.Stat_t, err error) {
	err = eintr.Do(func() error { return unix.Fstat(int(dir.Fd()), &st) })
	return st, failed("stat", dir.Name(), err)
}

// userOn returns for whom the server takes this process, which shows in what it
// makes there only (root_squash, all_squash, user namespaces). That is a file,
// since open(2) makes and opens one in the same moment: whoever else can write
// in dir cannot show his own instead.
func userOn(dir *os.File) (uint32, error) {
	name := probePrefix + rand.Text()
	const flags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	fd, err := eintr.Get(func() (int, error) { return unix.Openat(int(dir.Fd()), name, flags, 0o600) })
	if err != nil {
		return 0, failed("make a file in", dir.Name(), err)
	}
	f := os.NewFile(uintptr(fd), filepath.Join(dir.Name(), name))
	defer f.Close()
	st, err := stat(f)
	removed := eintr.Do(func() error { return unix.Unlinkat(int(dir.Fd()), name, 0) })
	if errors.Is(removed, unix.ENOENT) {
		removed = nil
	}
	return st.Uid, errors.Join(err, failed("remove", f.Name(), removed))
}

const probePrefix = ".probe-"
