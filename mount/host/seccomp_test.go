package host

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// installFilter installs a seccomp(2) filter on all threads of this process.
func installFilter(t *testing.T, program []unix.SockFilter) {
	t.Helper()
	const setModeFilter, syncThreads = 1, 1
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, setModeFilter, syncThreads, uintptr(unsafe.Pointer(&filter))); errno != 0 {
		t.Fatalf("install a filter of system calls: %v", errno)
	}
}
