// Package calltrace follows a process through its system calls, for tests that
// kill it at one of them, look at what it has left at one, or let one fail.
//
// Like every package below util, it carries no promise of compatibility.
package calltrace

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/pathin"
)

// Call is a system call about files or mounts, or one that starts a program, at its entry.
type Call struct {
	// Name is the kernel's: openat, write.
	Name string
	// Path is the file that it is about, or the directory that has it, as far as
	// that can be told without following links. It is empty for what prepares,
	// makes or ends a mount, and the working directory for what starts a program.
	Path string
	// Text is the call for a person to read.
	Text string
	// Changes says that another process may find something else afterwards, or a
	// mount is prepared; else the call only reads.
	Changes bool
	// Bytes is how many bytes a write asks for; 0 for every other call.
	Bytes uint64
}

// Action is what becomes of a call. The zero action lets it be.
type Action struct {
	// Kill ends the process before the call, KillAfter once the call has ended.
	Kill, KillAfter bool
	// Err is the call's answer, and the call is not made. Only amd64 can do it.
	Err unix.Errno
	// Short makes a write of several bytes write only half of them. Only amd64 can do it.
	Short bool
}

// Process is the process to follow: the running program, started again.
type Process struct {
	Args, Env []string // beside the program's name and the variables of this process
	// Stdout and Stderr of the process.
	Stdout, Stderr *os.File
	// Limit ends a process that hangs.
	Limit time.Duration
	// Stop sends SIGTERM to the process once it is closed. It may be nil.
	Stop <-chan struct{}
	// At is called before each [Call] of the process, while the thread that makes it is
	// stopped. It is called in one thread.
	At func(Call) Action
}

// Run starts the process and returns once it is gone: how it ended, and whether
// that was by an [Action].
func (p Process) Run() (status unix.WaitStatus, killed bool, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// The thread that started a process is its tracer, and no other. It ends
		// with this goroutine, and what is followed still ends with it.
		runtime.LockOSThread()
		status, killed, err = p.follow()
	}()
	<-done
	return status, killed, err
}

func (p Process) follow() (status unix.WaitStatus, killed bool, err error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, false, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec("/proc/self/exe", append([]string{os.Args[0]}, p.Args...), &syscall.ProcAttr{
		Env: append(os.Environ(), p.Env...), Files: []uintptr{null.Fd(), p.Stdout.Fd(), p.Stderr.Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		return 0, false, fmt.Errorf("start the process that is to be traced: %w", err)
	}
	hung := time.AfterFunc(p.Limit, func() { _ = unix.Kill(pid, unix.SIGKILL) })
	defer hung.Stop()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-p.Stop:
			_ = unix.Kill(pid, unix.SIGTERM)
		case <-ended:
		}
	}()
	tr := &tracee{pid: pid, at: p.At, known: calls(), threads: map[int]*thread{}}
	status, err = tr.follow()
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		return 0, false, fmt.Errorf("trace process %d: %w", pid, err)
	}
	return status, tr.killed, nil
}

// tracee is a process that is followed, all threads of it, by ptrace(2).
type tracee struct {
	pid     int
	at      func(Call) Action
	known   map[uint64]place
	threads map[int]*thread
	killed  bool
}

// thread is what is to be done when the thread's call ends.
type thread struct {
	kill   bool
	result int64 // to be answered; 0: what the kernel says
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

// follow lets the process run from stop to stop until it is gone.
func (p *tracee) follow() (unix.WaitStatus, error) {
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
			delete(p.threads, tid)
			continue
		}
		deliver, err := p.stopped(tid, status)
		if err != nil && err != unix.ESRCH { // killed while it was stopped
			return 0, err
		}
		if err := unix.PtraceSyscall(tid, int(deliver)); err != nil && err != unix.ESRCH {
			return 0, err
		}
	}
}

// stopped looks at a stop and says which signal the thread is to have.
func (p *tracee) stopped(tid int, status unix.WaitStatus) (deliver syscall.Signal, err error) {
	th, first := p.threads[tid], false
	if th == nil {
		th, first = &thread{}, true
		p.threads[tid] = th
	}
	switch signal := status.StopSignal(); {
	case signal == syscallStop:
		return 0, p.atCall(tid, th)
	case first && tid == p.pid: // after execve
		return 0, unix.PtraceSetOptions(tid, unix.PTRACE_O_TRACESYSGOOD|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_EXITKILL)
	case first && signal == unix.SIGSTOP, signal == unix.SIGTRAP: // a new thread, and the news of it
		return 0, nil
	default:
		return signal, nil
	}
}

func (p *tracee) atCall(tid int, th *thread) error {
	if p.killed {
		return nil
	}
	var info syscallInfo
	if _, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(tid), unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0); errno != 0 {
		return errno
	}
	if info.op != syscallEntry {
		return p.atEnd(tid, th)
	}
	call, ok := p.call(tid, &info)
	if !ok {
		return nil
	}
	switch action := p.at(call); {
	case action.Kill:
		return p.kill() // and the kernel does not begin the call of one that is to die
	case action.KillAfter:
		th.kill = true
	case action.Err != 0:
		th.result = -int64(action.Err)
		return skipCall(tid)
	case action.Short && call.Bytes > 1:
		return shortenCall(tid, call.Bytes/2)
	}
	return nil
}

func (p *tracee) atEnd(tid int, th *thread) error {
	if th.kill {
		return p.kill()
	}
	if th.result == 0 {
		return nil
	}
	result := th.result
	th.result = 0
	return answerCall(tid, result)
}

func (p *tracee) kill() error {
	p.killed = true
	return unix.Kill(p.pid, unix.SIGKILL)
}

// place says where a system call has the file that it is about.
type place struct {
	name        string
	kind        kind
	dir, path   int // the arguments that are a directory's descriptor and a path; of a file: dir is its descriptor
	other       int // the argument that is a second path, for a person; 0: none
	bytes       int // the argument that says how many bytes are written; 0: none
	alwaysReads bool
}

type kind int

const (
	byPath kind = iota
	byFile
	aboutMounts
	startsProgram
)

func calls() map[uint64]place {
	all := map[uint64]place{
		unix.SYS_FSOPEN:     {name: "fsopen", kind: aboutMounts},
		unix.SYS_FSCONFIG:   {name: "fsconfig", kind: aboutMounts},
		unix.SYS_FSMOUNT:    {name: "fsmount", kind: aboutMounts},
		unix.SYS_MOUNT:      {name: "mount", kind: aboutMounts, path: 1},
		unix.SYS_UMOUNT2:    {name: "umount2", kind: aboutMounts, path: 0},
		unix.SYS_MOVE_MOUNT: {name: "move_mount", kind: aboutMounts, path: 3},

		unix.SYS_OPEN_TREE:     {name: "open_tree", kind: aboutMounts, path: 1},
		unix.SYS_MOUNT_SETATTR: {name: "mount_setattr", kind: aboutMounts, path: 1},

		unix.SYS_CLONE: {name: "clone", kind: startsProgram},

		unix.SYS_MKDIRAT:    {name: "mkdirat", path: 1},
		unix.SYS_UNLINKAT:   {name: "unlinkat", path: 1},
		unix.SYS_RENAMEAT:   {name: "renameat", path: 1, other: 3},
		unix.SYS_RENAMEAT2:  {name: "renameat2", path: 1, other: 3},
		unix.SYS_SYMLINKAT:  {name: "symlinkat", dir: 1, path: 2},
		unix.SYS_LINKAT:     {name: "linkat", dir: 2, path: 3, other: 1},
		unix.SYS_MKNODAT:    {name: "mknodat", path: 1},
		unix.SYS_OPENAT:     {name: "openat", path: 1},
		unix.SYS_OPENAT2:    {name: "openat2", path: 1},
		unix.SYS_FCHMODAT:   {name: "fchmodat", path: 1},
		unix.SYS_FCHMODAT2:  {name: "fchmodat2", path: 1},
		unix.SYS_FCHOWNAT:   {name: "fchownat", path: 1},
		unix.SYS_UTIMENSAT:  {name: "utimensat", path: 1},
		unix.SYS_STATX:      {name: "statx", path: 1, alwaysReads: true},
		unix.SYS_READLINKAT: {name: "readlinkat", path: 1, alwaysReads: true},

		unix.SYS_WRITE:           {name: "write", kind: byFile, bytes: 2},
		unix.SYS_PWRITE64:        {name: "pwrite64", kind: byFile, bytes: 2},
		unix.SYS_WRITEV:          {name: "writev", kind: byFile},
		unix.SYS_COPY_FILE_RANGE: {name: "copy_file_range", kind: byFile, dir: 2},
		unix.SYS_FTRUNCATE:       {name: "ftruncate", kind: byFile},
		unix.SYS_FALLOCATE:       {name: "fallocate", kind: byFile},
		unix.SYS_FSYNC:           {name: "fsync", kind: byFile},
		unix.SYS_FDATASYNC:       {name: "fdatasync", kind: byFile},
		unix.SYS_SYNCFS:          {name: "syncfs", kind: byFile},
		unix.SYS_FCHMOD:          {name: "fchmod", kind: byFile},
		unix.SYS_FCHOWN:          {name: "fchown", kind: byFile},
		unix.SYS_FSETXATTR:       {name: "fsetxattr", kind: byFile},
		unix.SYS_FLOCK:           {name: "flock", kind: byFile},
		unix.SYS_CONNECT:         {name: "connect", kind: byFile},
		unix.SYS_IOCTL:           {name: "ioctl", kind: byFile},
		unix.SYS_QUOTACTL_FD:     {name: "quotactl_fd", kind: byFile},
		unix.SYS_READ:            {name: "read", kind: byFile, alwaysReads: true},
		unix.SYS_PREAD64:         {name: "pread64", kind: byFile, alwaysReads: true},
		unix.SYS_GETDENTS64:      {name: "getdents64", kind: byFile, alwaysReads: true},
		unix.SYS_FSTAT:           {name: "fstat", kind: byFile, alwaysReads: true},
		unix.SYS_FSTATFS:         {name: "fstatfs", kind: byFile, alwaysReads: true},
	}
	maps.Copy(all, callsHere())
	return all
}

// call says which [Call] begins, if it is one.
func (p *tracee) call(tid int, info *syscallInfo) (Call, bool) {
	at, ok := p.known[info.nr]
	if !ok {
		return Call{}, false
	}
	c := Call{Name: at.name, Changes: !at.alwaysReads}
	switch at.kind {
	case byFile:
		c.Path = p.file(info.args[at.dir])
	case byPath:
		c.Path = p.resolve(info.args[at.dir], peekString(tid, info.args[at.path]))
	case startsProgram:
		if info.args[0]&unix.CLONE_VFORK == 0 { // a thread
			return Call{}, false
		}
		c.Path, _ = os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid))
	}
	c.Text = c.Name + " " + c.Path
	if at.kind == aboutMounts && info.nr != unix.SYS_FSOPEN && info.nr != unix.SYS_FSCONFIG && info.nr != unix.SYS_FSMOUNT {
		c.Text += peekString(tid, info.args[at.path])
	}
	if at.other != 0 {
		c.Text += " " + peekString(tid, info.args[at.other])
	}
	if at.bytes != 0 {
		c.Bytes = info.args[at.bytes]
	}
	switch info.nr {
	case unix.SYS_OPENAT:
		c.Changes = info.args[2]&(unix.O_CREAT|unix.O_TMPFILE&^unix.O_DIRECTORY) != 0
	case unix.SYS_OPENAT2:
		var flags [8]byte
		_, err := unix.PtracePeekData(tid, uintptr(info.args[2]), flags[:])
		c.Changes = err == nil && flags[0]&unix.O_CREAT != 0
	case unix.SYS_OPEN_TREE:
		c.Changes = info.args[2]&unix.OPEN_TREE_CLONE != 0
	case unix.SYS_IOCTL:
		request := info.args[1]
		c.Text = fmt.Sprintf("%s %#x", c.Text, request)
		c.Path = "" // a device is where it is
		c.Changes = request == unix.LOOP_CONFIGURE || request == unix.LOOP_SET_FD || request == unix.LOOP_CLR_FD
		return c, c.Changes
	}
	return c, true
}

// file is what a descriptor is open to.
func (p *tracee) file(fd uint64) string {
	path, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", p.pid, int32(fd)))
	return path
}

// resolve is where a path of the process leads, from a directory's descriptor.
func (p *tracee) resolve(dir uint64, path string) string {
	for _, own := range []string{"/proc/self/fd/", "/proc/thread-self/fd/"} {
		if rest, ok := strings.CutPrefix(path, own); ok {
			fd, rest, _ := strings.Cut(rest, "/")
			file, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", p.pid, fd))
			return filepath.Join(file, rest)
		}
	}
	switch {
	case filepath.IsAbs(path):
		return filepath.Clean(path)
	case int32(dir) == unix.AT_FDCWD:
		work, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.pid))
		return filepath.Join(work, path)
	}
	return filepath.Join(p.file(dir), path)
}

// Below reports whether a path is a directory or lies below it, by the names alone.
func Below(path, dir string) bool {
	_, ok := pathin.Cut(dir, path)
	return ok
}

// peekString reads a path of the thread's.
func peekString(tid int, address uint64) string {
	var text [256]byte
	n, _ := unix.PtracePeekData(tid, uintptr(address), text[:])
	s, _, _ := strings.Cut(string(text[:n]), "\x00")
	return s
}
