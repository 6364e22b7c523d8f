package projection_test

import (
	"io/fs"
	"syscall"
)

// change is what of a file's status any write to it changes.
type change struct {
	Ino          uint64
	UID, GID     uint32
	Mtime, Ctime syscall.Timespec
}

func statOf(info fs.FileInfo) change {
	st := info.Sys().(*syscall.Stat_t)
	return change{st.Ino, st.Uid, st.Gid, st.Mtim, st.Ctim}
}
