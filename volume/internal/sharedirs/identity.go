package sharedirs

import (
	"encoding/hex"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// identity tells a directory from all others of its file system.
type identity struct {
	Inode uint64 `json:"inode"`
	// Birth is when the inode was made, in nanoseconds; 0: not known, as over
	// NFS with older kernels.
	Birth int64 `json:"birth,omitempty"`
	// Handle is the file's handle (name_to_handle_at(2)), which has the inode's
	// generation; over NFS it is the server's. Empty: not known.
	Handle string `json:"handle,omitempty"`
}

// same reports whether both are the same directory, as far as both know.
func (i identity) same(other identity) bool {
	return i.Inode == other.Inode &&
		(i.Birth == 0 || other.Birth == 0 || i.Birth == other.Birth) &&
		(i.Handle == "" || other.Handle == "" || i.Handle == other.Handle)
}

// key is another one for each directory.
func (i identity) key() string { return fmt.Sprintf("%d-%d-%s", i.Inode, i.Birth, i.Handle) }

func identify(fd int) (identity, error) {
	var st unix.Statx_t
	err := eintr.Do(func() error {
		return unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_INO|unix.STATX_BTIME, &st)
	})
	var id identity
	switch {
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM): // an older container runtime's filter
		var st unix.Stat_t
		if err := eintr.Do(func() error { return unix.Fstat(fd, &st) }); err != nil {
			return identity{}, err
		}
		id.Inode = st.Ino
	case err != nil:
		return identity{}, err
	default:
		id.Inode = st.Ino
		if st.Mask&unix.STATX_BTIME != 0 {
			id.Birth = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
		}
	}
	// Not every file system has handles, and not every process may ask.
	if h, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH); err == nil {
		id.Handle = fmt.Sprintf("%d:%s", h.Type(), hex.EncodeToString(h.Bytes()))
	}
	return id, nil
}
