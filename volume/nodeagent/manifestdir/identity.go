package manifestdir

import (
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// dirIdentity distinguishes a directory from another one that has taken its name.
// It holds after a reboot, too, when the number of its device may differ.
type dirIdentity struct {
	Inode uint64 `json:"inode"`
	// Born is the time at which it was made, in nanoseconds since 1970: file
	// systems such as ext4 reuse the inode number of a removed directory. 0 if
	// the file system does not know it.
	Born int64 `json:"born,omitempty"`
}

// same reports whether both can be the same directory.
func (i dirIdentity) same(other dirIdentity) bool {
	return i.Inode == other.Inode && (i.Born == 0 || other.Born == 0 || i.Born == other.Born)
}

// identityOf returns the directory's identity, and its device.
func identityOf(dir string) (id dirIdentity, device uint64, err error) {
	var x unix.Statx_t
	err = eintr.Do(func() error { return unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_INO|unix.STATX_BTIME, &x) })
	if err == nil {
		id.Inode = x.Ino
		if x.Mask&unix.STATX_BTIME != 0 {
			id.Born = x.Btime.Sec*1e9 + int64(x.Btime.Nsec)
		}
		return id, unix.Mkdev(x.Dev_major, x.Dev_minor), nil
	}
	var stat unix.Stat_t // older container runtimes refuse statx
	if err := eintr.Do(func() error { return unix.Stat(dir, &stat) }); err != nil {
		return dirIdentity{}, 0, err
	}
	return dirIdentity{Inode: stat.Ino}, uint64(stat.Dev), nil
}
