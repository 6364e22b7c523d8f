package format

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/program"
)

// maxOutput is how much of a program's output is kept, in bytes.
const maxOutput = 64 << 10

// find returns the path of a program, as [program.Find] does.
func (f *Formatter) find(name string) (string, error) {
	return program.Find(f.config.ToolDirs, name)
}

// command is a program with its arguments.
type command struct {
	path string
	args []string
	keep *os.File // inherited, so that its lock lasts as long as the program
}

func (c *command) String() string {
	return strings.Join(append([]string{filepath.Base(c.path)}, c.args...), " ")
}

// finish runs a program to its end, whatever happens to the caller or to this
// process. It has a session of its own, and a file for its output: a pipe without
// a reader would kill it.
func (c *command) finish() (output string, err error) {
	fd, err := unix.MemfdCreate("output", unix.MFD_CLOEXEC)
	if err != nil {
		return "", os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "output")
	defer file.Close()
	cmd := exec.Command(c.path, c.args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdout, cmd.Stderr = file, file
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if c.keep != nil {
		cmd.ExtraFiles = []*os.File{c.keep}
	}
	err = cmd.Run()
	return readOutput(file), err
}

func readOutput(file *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(file, 0, maxOutput))
	if err != nil {
		return fmt.Sprintf("(the output cannot be read: %v)", err)
	}
	return strings.TrimSpace(string(b))
}

// query runs a program that only reads; it is killed with its process group
// when ctx ends.
func (c *command) query(ctx context.Context) (stdout string, err error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, c.path, c.args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.Stdout = &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second // of its output, which a busy machine may be slow to read
	err = cmd.Run()
	return out.String(), err
}

// exitStatus returns the status a program exited with, or -1.
func exitStatus(err error) int {
	if err == nil {
		return 0
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	return -1
}
