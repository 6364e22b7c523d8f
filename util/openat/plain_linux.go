package openat

import (
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// resolveCached is RESOLVE_CACHED of linux/openat2.h.
const resolveCached = 0x20

// IsPlain reports whether there is a directory at a path, and no element of the path is a link.
// It goes by what the kernel has in memory (RESOLVE_CACHED, Linux 5.12), so that it asks no file
// server. False says nothing: the kernel may have forgotten, or lack the call.
func IsPlain(path string) bool {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | resolveCached,
	}
	fd, err := eintr.Get(func() (int, error) { return unix.Openat2(unix.AT_FDCWD, path, &how) })
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}
