package diskusage

import (
	"bytes"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

type fileID struct{ dev, ino uint64 }

// file is what a measurement asks about a file.
type file struct {
	fileID
	mount  uint64 // 0 if not known
	mode   uint32
	links  uint32
	blocks uint64
}

func (f *file) isDir() bool { return f.mode&unix.S_IFMT == unix.S_IFDIR }

// sameMount reports whether both are on one mount, or, where mount ids are not
// known, on one file system.
func (f *file) sameMount(other *file) bool {
	if f.mount != 0 && other.mount != 0 {
		return f.mount == other.mount
	}
	return f.dev == other.dev
}

const (
	statFlags = unix.AT_SYMLINK_NOFOLLOW | unix.AT_NO_AUTOMOUNT | unix.AT_STATX_DONT_SYNC
	statMask  = unix.STATX_TYPE | unix.STATX_NLINK | unix.STATX_INO | unix.STATX_BLOCKS | unix.STATX_MNT_ID
)

// statOpen looks at an open file. It does not wait for a server, nor does
// statEntry. What they find is in w.file, where it costs no memory.
func (w *walk) statOpen(fd int) error {
	err := eintr.Do(func() error { return unix.Statx(fd, "", statFlags|unix.AT_EMPTY_PATH, statMask, &w.st) })
	if err == nil {
		w.found()
	}
	return err
}

// statEntry looks at the entry of a directory whose name and a NUL byte begin
// the slice, as getdents64 has written them. Made a Go string first and a C
// string of that again, names would cost more memory than everything else, and
// its collection time.
func (w *walk) statEntry(dirfd int, name []byte) error {
	if w.tree.plainStat {
		name, _, _ := bytes.Cut(name, []byte{0})
		if err := unix.Statx(dirfd, string(name), statFlags, statMask, &w.st); err != nil {
			return err
		}
		w.found()
		return nil
	}
	for {
		_, _, errno := unix.Syscall6(unix.SYS_STATX, uintptr(dirfd), uintptr(unsafe.Pointer(unsafe.SliceData(name))),
			statFlags, statMask, uintptr(unsafe.Pointer(&w.st)), 0)
		switch errno {
		case 0:
			w.found()
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}

func (w *walk) found() {
	w.file = file{
		fileID: fileID{dev: unix.Mkdev(w.st.Dev_major, w.st.Dev_minor), ino: w.st.Ino},
		mode:   uint32(w.st.Mode),
		links:  w.st.Nlink,
		blocks: w.st.Blocks,
	}
	if w.tree.mountIDs && w.st.Mask&unix.STATX_MNT_ID != 0 {
		w.file.mount = w.st.Mnt_id
	}
}
