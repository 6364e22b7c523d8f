package testtool

import (
	"flag"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	memory = "/dev/shm"
	// leastFree is more than the tests of one package write.
	leastFree = 1 << 30
	// checks is how many random cases rapid draws, as under -short.
	checks = "20"
)

// Shorten makes the tests of a package take less time, where they are to be
// [Shortened]. TestMain calls it before it runs them.
//
//   - They have their temporary directories in memory, if that is there and TMPDIR
//     does not name another place: disks take long to sync files, and to make a file
//     where many were deleted.
//   - Those that draw random cases draw fewer, if -rapid.checks does not say how many.
func Shorten() {
	flag.Parse()
	if !Shortened() {
		return
	}
	if os.Getenv("TMPDIR") == "" && usable(memory) {
		_ = os.Setenv("TMPDIR", memory)
	}
	if f := flag.Lookup("rapid.checks"); f != nil && !testing.Short() && f.Value.String() == f.DefValue {
		_ = f.Value.Set(checks)
	}
}

// usable reports whether tests can have their temporary directories there, and can
// run what they put in them.
func usable(dir string) bool {
	var fs unix.Statfs_t
	if unix.Statfs(dir, &fs) != nil || unix.Access(dir, unix.W_OK|unix.X_OK) != nil {
		return false
	}
	return fs.Type == unix.TMPFS_MAGIC && fs.Flags&unix.ST_NOEXEC == 0 && fs.Bavail*uint64(fs.Bsize) >= leastFree
}
