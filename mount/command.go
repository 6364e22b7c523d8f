package mount

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"
)

const (
	// maxOutput is how much of mount(8)'s output is kept, in bytes.
	maxOutput = 64 << 10
	// outputGrace is how long output may stay open after mount(8) has ended,
	// as by a daemon that it left behind.
	outputGrace = time.Second
)

// commandError is a mount(8) that was run and failed.
type commandError struct {
	output    string // as it was printed
	uncertain bool
	err       error
}

func (e *commandError) Error() string { return e.err.Error() }
func (e *commandError) Unwrap() error { return e.err }

// mountByCommand runs mount(8), one at a time for each target.
func (m *HostMounter) mountByCommand(ctx context.Context, r Request, flags []string) error {
	args, _ := k8smount.MakeMountArgsSensitiveWithMountFlags(r.Source, r.Target, r.FSType, r.Options, r.Sensitive, flags)
	err := m.calls.Do(ctx, mountKey(r.Target), func() error {
		if err := checkTarget(r.Target); err != nil {
			return err
		}
		return runCommand(ctx, m.config.MountCommand, args)
	})
	if err == nil {
		return nil
	}
	e := Error{
		Op: OpMount, Source: r.Source, Target: r.Target, FSType: r.FSType, Options: r.maskedOptions(),
		Command: strings.Join(append(slices.Concat([]string{m.config.MountCommand}, flags), r.args()...), " "),
	}
	failed, ok := errors.AsType[*commandError](err)
	if !ok {
		return wrapCall(err, e)
	}
	e.Output = r.mask(failed.output)
	e.Cause, e.Also = m.diagnose(r, failed)
	e.Uncertain = failed.uncertain
	e.Err = failed.err // an exit status or a failed start: no arguments in it
	return &e
}

// checkTarget refuses a target that does not exist or is a link.
func checkTarget(target string) error {
	n := native{request: Request{Target: target}}
	defer n.close()
	return n.openTarget()
}

// runCommand runs mount(8) in a session of its own: it has no terminal to ask
// for a password, and its whole process group is killed when ctx ends. It
// returns a *commandError once the process has been reaped.
func runCommand(ctx context.Context, command string, args []string) error {
	var output cappedBuffer
	cmd := exec.CommandContext(ctx, command, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C") // the output is diagnosed
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = outputGrace
	err := cmd.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		return nil
	}
	failed := &commandError{output: output.String(), err: err}
	if cmd.ProcessState == nil {
		return failed // it was never started
	}
	// Of mount(8)'s exit statuses these say that it did, or may have done,
	// something; -1 is a signal.
	failed.uncertain = slices.Contains([]int{-1, 4, 8, 16, 64}, cmd.ProcessState.ExitCode())
	if ctx.Err() != nil {
		failed.err = fmt.Errorf("mount(8) was killed: %w", ended(ctx))
	}
	return failed
}

func killGroup(leader int) error {
	err := unix.Kill(-leader, unix.SIGKILL)
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// cappedBuffer keeps the first maxOutput bytes.
type cappedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (c *cappedBuffer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf.Write(p[:min(len(p), maxOutput-c.buf.Len())])
	return len(p), nil
}

func (c *cappedBuffer) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}
