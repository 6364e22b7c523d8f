package sharedirs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
	"github.com/podvol/podvol/util/justmade"
)

// trust refuses a bookkeeping that another user has made, maybe with forged
// marks, and returns its owner. Any user who may write in the base can put one
// there.
func (b *base) trust(top *os.File) (owner uint32, err error) {
	st, err := stat(top)
	if err != nil {
		return 0, err
	}
	ours := b.agent
	if st.Uid != ours {
		if ours, err = justmade.UserIn(int(top.Fd())); err != nil {
			return 0, failed("make a file in", top.Name(), err)
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
		return &Error{Cause: ErrForeign, Path: dir.Name(), ours: ours,
			Reason: fmt.Sprintf("belongs to user %d, while what this node makes there belongs to user %d", st.Uid, ours)}
	case st.Mode&0o022 != 0:
		return &Error{Cause: ErrExposed, Path: dir.Name(), Reason: fmt.Sprintf("has the mode %#o: others could write in it", st.Mode&0o7777)}
	}
	return nil
}

func stat(dir *os.File) (st unix.Stat_t, err error) {
	err = eintr.Do(func() error { return unix.Fstat(int(dir.Fd()), &st) })
	return st, failed("stat", dir.Name(), err)
}
