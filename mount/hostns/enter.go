package hostns

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/eintr"
)

// childName is the name by which the program knows that it is the child.
const childName = "podvol-hostns"

// socketFD is the child's end of the pair.
const socketFD = 3

// namespaces are what the child enters: servers are reached by the host's network, the NFS
// client is known by the host's name (uts), and mqueue is the host's (ipc). Of the
// cgroup's it sees all paths. It is in this order: the mount namespace has the others' names.
func namespaces() []namespace {
	return []namespace{{"cgroup", unix.CLONE_NEWCGROUP}, {"ipc", unix.CLONE_NEWIPC}, {"uts", unix.CLONE_NEWUTS}, {"net", unix.CLONE_NEWNET}, {"mnt", unix.CLONE_NEWNS}}
}

type namespace struct {
	name string
	kind int
}

type namespaceFile struct {
	namespace
	file *os.File
}

// startChild starts this program again in the namespaces of a directory like /proc/1/ns. Only
// that of mounts must be there.
func startChild(dir string, stderr io.Writer) (cmd *exec.Cmd, ours *os.File, err error) {
	opened, err := openNamespaces(dir)
	defer func() {
		for _, n := range opened {
			n.file.Close()
		}
	}()
	if err != nil {
		return nil, nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "agent"), os.NewFile(uintptr(pair[1]), "child")
	defer theirs.Close()
	cmd = exec.Command("/proc/self/exe")
	cmd.Args = []string{childName}
	cmd.Env = environment(os.Environ())
	cmd.Dir = "/"
	cmd.Stderr = stderr
	cmd.ExtraFiles = []*os.File{theirs}                  // the first is socketFD
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a terminal's signals are the agent's
	if err := inThreadOfItsOwn(func() error { return enterAndStart(opened, cmd) }); err != nil {
		ours.Close()
		return nil, nil, err
	}
	return cmd, ours, nil
}

// inThreadOfItsOwn runs f in a thread that ends with it. It is not the main one, which cannot
// end, and whose namespaces are what /proc/self shows.
func inThreadOfItsOwn(f func() error) error {
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			err := inThreadOfItsOwn(f) // another one, as this one is taken
			runtime.UnlockOSThread()
			failed <- err
			return
		}
		failed <- f()
	}()
	return <-failed
}

// openNamespaces opens those that this process is not in already.
func openNamespaces(dir string) (opened []namespaceFile, err error) {
	for _, n := range namespaces() {
		f, err := os.Open(filepath.Join(dir, n.name))
		switch {
		case err == nil && isOwn(f, n.name):
			f.Close()
		case err == nil:
			opened = append(opened, namespaceFile{n, f})
		case n.name == "mnt":
			return opened, fmt.Errorf("the host's mount namespace cannot be opened (the pod needs hostPID: true and privileged: true): %w", err)
		}
	}
	return opened, nil
}

func isOwn(f *os.File, name string) bool {
	theirs, err := f.Stat()
	if err != nil {
		return false
	}
	ours, err := os.Stat("/proc/self/ns/" + name)
	return err == nil && os.SameFile(ours, theirs)
}

// enterAndStart changes the calling thread for ever. The child inherits its namespaces
// and root directory.
func enterAndStart(opened []namespaceFile, cmd *exec.Cmd) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // else no mount namespace can be entered
		return os.NewSyscallError("unshare", err)
	}
	for _, n := range opened {
		if err := eintr.Do(func() error { return unix.Setns(int(n.file.Fd()), n.kind) }); err != nil {
			return fmt.Errorf("enter %s (the container needs privileged: true): %w", n.file.Name(), err)
		}
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start this program in the host's namespaces (is it linked statically?): %w", err)
	}
	return nil
}

// hostPath is where a host's programs are; the container's PATH says nothing of it.
const hostPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func environment(own []string) []string {
	own = slices.DeleteFunc(slices.Clone(own), func(v string) bool { return strings.HasPrefix(v, "PATH=") })
	return append(own, hostPath)
}
