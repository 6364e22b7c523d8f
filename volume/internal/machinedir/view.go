package machinedir

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// unknownView is that of a program of which no later one can be told apart. No view is the same.
const unknownView = "unknown"

// viewBy is where this program looks from: the mount of its root directory, which is one mount
// namespace's alone, and the directory.
//
//   - The kernel numbers mounts by a count that never repeats (STATX_MNT_ID_UNIQUE, Linux 6.8).
//     The number of a mount namespace, and that of a file system, is given to the next one.
//   - An older kernel has the machine's own mount namespace, which ends with it. Every other
//     one may be followed by one that looks the same.
func viewBy(statx func(dirfd int, path string, flags, mask int, st *unix.Statx_t) error) (string, error) {
	var st unix.Statx_t
	err := eintr.Do(func() error { return statx(unix.AT_FDCWD, "/", 0, unix.STATX_INO|unix.STATX_MNT_ID_UNIQUE, &st) })
	if err != nil {
		return "", fmt.Errorf("the root directory of this program is not known: %w", err)
	}
	if st.Mask&unix.STATX_MNT_ID_UNIQUE != 0 {
		return fmt.Sprintf("mount.%d.%d.%d.%d", st.Mnt_id, st.Dev_major, st.Dev_minor, st.Ino), nil
	}
	if isInMachinesNamespace() {
		return fmt.Sprintf("machine.%d.%d.%d", st.Dev_major, st.Dev_minor, st.Ino), nil
	}
	return unknownView, nil
}

// firstPIDNamespace is the number of the machine's own (PROC_PID_INIT_INO of the kernel).
const firstPIDNamespace = 0xEFFFFFFC

// isInMachinesNamespace reports whether this program certainly has the mount namespace of the
// machine's first process.
func isInMachinesNamespace() bool {
	var pids, own, first unix.Stat_t
	for path, st := range map[string]*unix.Stat_t{"/proc/self/ns/pid": &pids, "/proc/self/ns/mnt": &own, "/proc/1/ns/mnt": &first} {
		if eintr.Do(func() error { return unix.Stat(path, st) }) != nil {
			return false
		}
	}
	return pids.Ino == firstPIDNamespace && own.Ino == first.Ino && own.Dev == first.Dev
}

const noHome = "-"

// HomeOf names a directory by what it is, not by its path: programs of two mount namespaces often
// have the same path, and one program has another path there than here.
func HomeOf(dir string) (string, error) {
	var st unix.Stat_t
	if err := eintr.Do(func() error { return unix.Stat(dir, &st) }); err != nil {
		return "", fmt.Errorf("which directory %s is: %w", dir, err)
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}
