package driver

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/retry"
)

// Output is what a program has written, as far as it is kept.
type Output struct{ Stdout, Stderr []byte }

// A Runner runs a program to its end. An error that is no *[exec.ExitError] says that it did not
// run, or was killed when ctx ended.
type Runner func(ctx context.Context, path string, args []string) (Output, error)

// outputGrace is how long output may stay open after the program has ended, as by a daemon that
// it has left behind.
const outputGrace = time.Second

// Run runs a program as the leader of a process group, from the directory "/".
//
//   - When ctx ends, all of its process group is killed. What it leaves behind when it ends by
//     itself, such as the daemon of a file system, lives on.
//   - The program does not outlive this process.
//   - Of its output a little more than an answer may have is kept.
//   - It is reaped before Run returns.
func Run(ctx context.Context, path string, args []string) (out Output, err error) {
	// The kernel kills the program when the thread ends that has started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// An installer may still write the program.
	err = retry.Do(ctx, unix.ETXTBSY, func() error {
		out, err = run(ctx, path, args)
		return err
	})
	return out, err
}

func run(ctx context.Context, path string, args []string) (Output, error) {
	var stdout, stderr capped
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/"
	session, err := unix.Getsid(0)
	if err != nil {
		return Output{}, err
	}
	if m := mark(session, os.Getpid(), args); m != "" {
		cmd.Env = append(os.Environ(), m)
	}
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// It stays in this session: its daemons, which do not, are told by that (EndLeft).
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = outputGrace
	err = cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		err = nil // only its daemon still has the output
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return Output{stdout.bytes(), stderr.bytes()}, err
}

func killGroup(leader int) error {
	err := unix.Kill(-leader, unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// capped keeps the first bytes that are written to it.
type capped struct {
	mu   sync.Mutex
	kept []byte
}

func (c *capped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kept = append(c.kept, p[:min(len(p), maxOutput+1-len(c.kept))]...)
	return len(p), nil
}

func (c *capped) bytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kept
}
