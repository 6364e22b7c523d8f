package volumemanager_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// killPoint is a moment in the life of a process: just before or just after
// the n-th of its system calls that change something.
type killPoint struct {
	n     int
	after bool
}

func (k killPoint) String() string {
	return fmt.Sprintf("%s call %d", map[bool]string{false: "before", true: "after"}[k.after], k.n)
}

// tracee is a process that is followed through its system calls, all threads
// of it, by ptrace(2).
type tracee struct {
	pid    int
	below  string // writes to files elsewhere do not count
	until  killPoint
	calls  int
	watch  int    // the thread whose call is to end before the kill; 0: none
	call   string // the call at which it was killed
	killed bool
}

// changing are the system calls that change what another process may find, and
// those that prepare a mount. Descriptions are made of what follows the name.
var changing = map[uint64]string{
	unix.SYS_MOUNT: "mount", unix.SYS_UMOUNT2: "umount2",
	unix.SYS_FSOPEN: "fsopen", unix.SYS_FSCONFIG: "fsconfig", unix.SYS_FSMOUNT: "fsmount", unix.SYS_MOVE_MOUNT: "move_mount",
	unix.SYS_OPEN_TREE: "open_tree", unix.SYS_MOUNT_SETATTR: "mount_setattr",
	unix.SYS_MKDIRAT: "mkdirat", unix.SYS_UNLINKAT: "unlinkat", unix.SYS_RENAMEAT: "renameat", unix.SYS_RENAMEAT2: "renameat2",
	unix.SYS_SYMLINKAT: "symlinkat", unix.SYS_LINKAT: "linkat", unix.SYS_MKNODAT: "mknodat",
	unix.SYS_OPENAT: "openat", unix.SYS_OPENAT2: "openat2",
	unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite64", unix.SYS_WRITEV: "writev", unix.SYS_COPY_FILE_RANGE: "copy_file_range",
	unix.SYS_FTRUNCATE: "ftruncate", unix.SYS_FALLOCATE: "fallocate", unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync",
	unix.SYS_FCHMOD: "fchmod", unix.SYS_FCHMODAT: "fchmodat", unix.SYS_FCHMODAT2: "fchmodat2",
	unix.SYS_FCHOWN: "fchown", unix.SYS_FCHOWNAT: "fchownat", unix.SYS_FSETXATTR: "fsetxattr", unix.SYS_FLOCK: "flock",
	unix.SYS_UTIMENSAT: "utimensat", unix.SYS_IOCTL: "ioctl",
}

// syscallInfo is struct ptrace_syscall_info (ptrace(2), Linux 5.3): the same on
// all architectures.
type syscallInfo struct {
	op     uint8
	_      [3]uint8
	arch   uint32
	ip, sp uint64
	nr     uint64 // of an entry
	args   [6]uint64
	_      [2]uint64 // what only seccomp stops have, and room to grow
}

const (
	ptraceGetSyscallInfo = 0x420e
	syscallEntry         = 1
	syscallStop          = unix.SIGTRAP | 0x80 // PTRACE_O_TRACESYSGOOD
)

// runUntil runs the test binary with these arguments and variables, and kills
// it at the point. The process is gone when it returns: killed says whether
// that was because of the point, or it had ended well before.
func runUntil(t *testing.T, args, env []string, below string, until killPoint) (killed bool, call string) {
	t.Helper()
	// The thread that started a process is its tracer, and no other.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	output, err := os.CreateTemp(t.TempDir(), "output-")
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	pid, err := syscall.ForkExec("/proc/self/exe", append([]string{os.Args[0]}, args...), &syscall.ProcAttr{
		Env: append(os.Environ(), env...), Files: []uintptr{0, output.Fd(), output.Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		t.Fatalf("start the process that is to be traced: %v", err)
	}
	hung := time.AfterFunc(5*time.Minute, func() { _ = unix.Kill(pid, unix.SIGKILL) })
	defer hung.Stop()
	p := &tracee{pid: pid, below: below, until: until}
	status, err := p.follow()
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		t.Fatalf("trace process %d: %v", pid, err)
	}
	if p.killed && status.Signal() == unix.SIGKILL {
		return true, p.call
	}
	if !status.Exited() || status.ExitStatus() != 0 {
		said, _ := os.ReadFile(output.Name())
		t.Fatalf("%v: the traced process ended by itself, or was too slow: %#x\n%s", until, uint32(status), said)
	}
	return false, ""
}

// follow lets the process run from stop to stop until it is gone.
func (p *tracee) follow() (unix.WaitStatus, error) {
	known := map[int]bool{}
	for {
		var status unix.WaitStatus
		tid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case !status.Stopped():
			if tid == p.pid {
				return status, nil // the last of its threads to be reported
			}
			continue
		}
		deliver, err := p.stopped(tid, status, !known[tid])
		if err != nil && err != unix.ESRCH { // killed while it was stopped
			return 0, err
		}
		known[tid] = true
		if err := unix.PtraceSyscall(tid, int(deliver)); err != nil && err != unix.ESRCH {
			return 0, err
		}
	}
}

// stopped looks at a stop and says which signal the thread is to have.
func (p *tracee) stopped(tid int, status unix.WaitStatus, first bool) (deliver syscall.Signal, err error) {
	switch signal := status.StopSignal(); {
	case signal == syscallStop:
		return 0, p.atCall(tid)
	case first && tid == p.pid: // after execve
		return 0, unix.PtraceSetOptions(tid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL)
	case first && signal == unix.SIGSTOP, signal == unix.SIGTRAP: // a new thread, and the news of it
		return 0, nil
	default:
		return signal, nil
	}
}

func (p *tracee) atCall(tid int) error {
	if p.killed {
		return nil
	}
	var info syscallInfo
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0); errno != 0 {
		return errno
	}
	if info.op != syscallEntry {
		if tid == p.watch {
			return p.kill()
		}
		return nil
	}
	call, changes := p.changes(tid, &info)
	if !changes {
		return nil
	}
	if p.calls++; p.calls != p.until.n {
		return nil
	}
	p.call = call
	if p.until.after {
		p.watch = tid
		return nil
	}
	return p.kill() // and the kernel does not begin the call of one that is to die
}

func (p *tracee) kill() error {
	p.killed = true
	return unix.Kill(p.pid, unix.SIGKILL)
}

// changes says whether the call that begins changes something, and which it is.
func (p *tracee) changes(tid int, info *syscallInfo) (string, bool) {
	name, ok := changing[info.nr]
	if !ok {
		return "", false
	}
	path := func(arg int) string { return name + " " + peekString(tid, info.args[arg]) }
	switch info.nr {
	case unix.SYS_OPENAT:
		return path(1), info.args[2]&unix.O_CREAT != 0
	case unix.SYS_OPENAT2:
		var flags [8]byte
		_, err := unix.PtracePeekData(tid, uintptr(info.args[2]), flags[:])
		return path(1), err == nil && flags[0]&unix.O_CREAT != 0
	case unix.SYS_OPEN_TREE:
		return path(1), info.args[2]&unix.OPEN_TREE_CLONE != 0
	case unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_MKNODAT, unix.SYS_FCHMODAT, unix.SYS_FCHMODAT2, unix.SYS_FCHOWNAT, unix.SYS_MOUNT:
		return path(1), true
	case unix.SYS_UMOUNT2:
		return path(0), true
	case unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_MOVE_MOUNT, unix.SYS_LINKAT:
		return path(1) + " " + peekString(tid, info.args[3]), true
	case unix.SYS_IOCTL:
		request := info.args[1]
		return fmt.Sprintf("ioctl %#x", request), request == unix.LOOP_CONFIGURE || request == unix.LOOP_SET_FD || request == unix.LOOP_CLR_FD
	case unix.SYS_SYMLINKAT:
		return path(2), true
	case unix.SYS_WRITE, unix.SYS_PWRITE64, unix.SYS_WRITEV, unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_FSYNC, unix.SYS_FDATASYNC,
		unix.SYS_FCHMOD, unix.SYS_FCHOWN, unix.SYS_FLOCK:
		file, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.pid, int32(info.args[0])))
		return name + " " + file, strings.HasPrefix(file, p.below+string(filepath.Separator))
	}
	return name, true
}

// peekString reads a path of the thread's.
func peekString(tid int, address uint64) string {
	var text [256]byte
	n, _ := unix.PtracePeekData(tid, uintptr(address), text[:])
	s, _, _ := strings.Cut(string(text[:n]), "\x00")
	return s
}
