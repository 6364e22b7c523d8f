package table

import (
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/eintr"
)

// NodesOf returns the mounts that show the node of a block device somewhere else, oldest
// first: the device's block volumes, below whichever root directory. A mount that cannot be read is
// an error, for it may be one of them.
func NodesOf(t mount.Table, number uint64) (nodes []mount.Entry, err error) {
	all, err := t.All()
	if err != nil {
		return nil, err
	}
	for _, e := range all {
		if e.FSType != "devtmpfs" || e.Root == "/" {
			continue
		}
		var st unix.Stat_t
		err := eintr.Do(func() error { return unix.Lstat(e.Target, &st) })
		if errors.Is(err, unix.ENOENT) { // unmounted meanwhile, or out of sight
			continue
		}
		if err != nil {
			return nil, &fs.PathError{Op: "lstat", Path: e.Target, Err: err}
		}
		if st.Mode&unix.S_IFMT == unix.S_IFBLK && uint64(st.Rdev) == number {
			nodes = append(nodes, e)
		}
	}
	return nodes, nil
}
