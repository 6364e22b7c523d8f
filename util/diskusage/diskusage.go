// Package diskusage measures the space that a directory tree occupies.
//
// Like every package below util, it carries no promise of compatibility.
package diskusage

import (
	"context"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// Usage is what a tree occupies.
type Usage struct {
	// Bytes is the space of all files and directories on disk, in bytes: what
	// "du -s -x -B1" says. Holes do not count.
	Bytes int64
	// Inodes are the files, directories and links, the root included.
	Inodes int64
}

// Walk measures the tree at dir. If dir is a link it is followed; links
// beneath it are not. A file with several names in the tree counts once. What
// is mounted beneath dir does not count, whatever its file system.
//
// The tree may change meanwhile: what disappears or is moved is counted or is
// not. Neither the depth of the tree nor the number of its files costs file
// descriptors. Walk works serially.
//
// The error is a *[fs.PathError], for example for a directory that must not be
// read, or the cause of ctx's end, which is looked at between system calls; one
// that hangs is not interrupted. What was counted until then is returned with
// the error.
func Walk(ctx context.Context, dir string) (Usage, error) {
	return measure(ctx, dir, true)
}

// measure can be told to do without the mount ids of statx(2), which Linux has
// since 5.8. Without them only mounts of another file system are noticed.
func measure(ctx context.Context, dir string, mountIDs bool) (Usage, error) {
	fd, err := eintr.Get(func() (int, error) {
		return unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return Usage{}, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	w := walk{mountIDs: mountIDs, seen: make(map[fileID]struct{}), buffer: make([]byte, 32<<10)}
	defer w.close()
	w.stack = []frame{{name: dir, fd: fd}}
	root, err := w.stat(fd, "")
	if err != nil {
		return Usage{}, &fs.PathError{Op: "statx", Path: dir, Err: err}
	}
	w.stack[0].id, w.root = root.fileID, root
	w.count(root)
	err = w.run(ctx)
	return w.usage, err
}

type fileID struct{ dev, ino uint64 }

// file is what a measurement asks about a file.
type file struct {
	fileID
	mount  uint64 // 0 if not known
	mode   uint32
	links  uint32
	blocks uint64
}

func (f file) isDir() bool { return f.mode&unix.S_IFMT == unix.S_IFDIR }

// sameMount reports whether both are on one mount, or, where mount ids are not
// known, on one file system.
func (f file) sameMount(other file) bool {
	if f.mount != 0 && other.mount != 0 {
		return f.mount == other.mount
	}
	return f.dev == other.dev
}

// stat describes an entry of a directory, or the open file itself for an empty
// name. It does not wait for a server.
func (w *walk) stat(dirfd int, name string) (file, error) {
	flags := unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	if name == "" {
		flags |= unix.AT_EMPTY_PATH
	}
	var st unix.Statx_t
	err := eintr.Do(func() error {
		return unix.Statx(dirfd, name, flags, unix.STATX_TYPE|unix.STATX_NLINK|unix.STATX_INO|unix.STATX_BLOCKS|unix.STATX_MNT_ID, &st)
	})
	if err != nil {
		return file{}, err
	}
	f := file{
		fileID: fileID{dev: unix.Mkdev(st.Dev_major, st.Dev_minor), ino: st.Ino},
		mode:   uint32(st.Mode),
		links:  st.Nlink,
		blocks: st.Blocks,
	}
	if w.mountIDs && st.Mask&unix.STATX_MNT_ID != 0 {
		f.mount = st.Mnt_id
	}
	return f, nil
}
