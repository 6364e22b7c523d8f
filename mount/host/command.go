package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/ladder"
	"github.com/podvol/podvol/mount/internal/mountopt"
	"github.com/podvol/podvol/util/blockingcall"
)

// maxOutput is how much of mount(8)'s output is kept, in bytes.
const maxOutput = 64 << 10

// graces are how long is waited for what mount(8) leaves.
type graces struct {
	// output is how long output may stay open after mount(8) has ended, as by a
	// daemon that it left behind.
	output time.Duration
	// kill is how long the end of a killed mount(8) is waited for, so that the
	// mount table can tell whether it left anything.
	kill time.Duration
}

func usualGraces() graces { return graces{output: time.Second, kill: 500 * time.Millisecond} }

// commandError is a mount(8) that was run and failed.
type commandError struct {
	output    string // as it was printed
	uncertain bool
	// ended says that all writers of the output have ended, or closed it on purpose
	// as daemons do.
	ended bool
	err   error
}

func (e *commandError) Error() string { return e.err.Error() }
func (e *commandError) Unwrap() error { return e.err }

// runner says how mount(8) is to be run.
type runner struct {
	flags   []string // of mount(8), before everything else
	noScope bool     // never in a systemd scope
}

// mountByCommand runs mount(8), one at a time for each target. Sensitive options
// are kept out of its argument list where the helper takes them otherwise
// (handOver). Its mount is looked for in the mount table: one that was led
// elsewhere is undone and [mount.ErrTargetReplaced].
//
// When ctx ends the command is killed, and for half a second its end is waited for:
// the error is certain if all that it started has ended and nothing new is in
// the mount table.
func (m *Mounter) mountByCommand(ctx context.Context, r mount.Request, how runner) error {
	if mountopt.IsDescriptor(r.Source) {
		how.flags = append([]string{mountopt.NoCanonicalize}, how.flags...)
	}
	given := m.config.handOver(r)
	line := m.inCommand(ctx, r, given, how)
	waitCtx, cancel := lingering(ctx, m.graces.kill)
	defer cancel()
	err := m.calls.Do(waitCtx, mountKey(r.Target), func() error {
		if ctx.Err() != nil {
			return &blockingcall.AbandonedError{Err: context.Cause(ctx)} // it waited for an earlier one
		}
		l := landing{m: m, request: r, flags: how.flags, parent: -1}
		defer l.close()
		if err := l.prepare(); err != nil {
			return err
		}
		err := runCommand(ctx, line, given, m.graces.output)
		if failed, ok := errors.AsType[*commandError](err); ok {
			failed.uncertain = failed.uncertain && !(failed.ended && l.provesNothing())
		}
		if err != nil {
			return err
		}
		return l.check()
	})
	if err == nil {
		return nil
	}
	e := mount.Error{
		Op: mount.OpMount, Source: r.Source, Target: r.Target, FSType: r.FSType, Options: r.MaskedOptions(),
		Command: line.shown,
	}
	failed, ok := errors.AsType[*commandError](err)
	if !ok {
		return mount.Explain(err, e)
	}
	e.Output = r.Mask(failed.output)
	e.Cause, e.Also = m.diagnose(r, failed)
	if e.Cause == mount.ErrBadOption {
		e.Option = r.MaskOption(mount.OptionIn(failed.output))
	}
	e.Uncertain = failed.uncertain
	e.Err = failed.err // an exit status or a failed start: no arguments in it
	return &e
}

// inCommand is the command line of a request, in a scope where it needs one.
func (m *Mounter) inCommand(ctx context.Context, r mount.Request, given handover, how runner) commandLine {
	line := commandLine{name: m.config.MountCommand}
	line.args, _ = k8smount.MakeMountArgsSensitiveWithMountFlags(r.Source, r.Target, r.FSType, r.Options, given.args, how.flags)
	line.shown = strings.Join(append(slices.Concat([]string{line.name}, how.flags), r.Args()...), " ")
	if how.noScope {
		return line
	}
	return m.inScope(ctx, r, line)
}

// lingering returns a context that ends a while after ctx, for the same cause.
func lingering(ctx context.Context, while time.Duration) (context.Context, context.CancelFunc) {
	longer, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		late := time.NewTimer(while)
		defer late.Stop()
		select {
		case <-late.C:
			end(context.Cause(ctx))
		case <-longer.Done():
		}
	})
	return longer, func() { stop(); end(nil) }
}

// runCommand runs mount(8) in a session of its own: it has no terminal to ask
// for a password, and its whole process group is killed when ctx ends. It
// returns a *commandError once the process has been reaped.
func runCommand(ctx context.Context, line commandLine, given handover, grace time.Duration) error {
	inherited, err := given.files()
	if err != nil {
		return err
	}
	defer func() {
		for _, f := range inherited {
			f.Close()
		}
	}()
	var output cappedBuffer
	cmd := exec.CommandContext(ctx, line.name, line.args...)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), given.env...) // the output is diagnosed
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.ExtraFiles = inherited
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
	cmd.WaitDelay = grace
	err = cmd.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		return nil
	}
	failed := &commandError{output: output.String(), ended: output.hasEnded(), err: err}
	if cmd.ProcessState == nil {
		if errors.Is(err, os.ErrNotExist) { // by its path; by its name exec says so itself
			failed.err = &exec.Error{Name: cmd.Path, Err: exec.ErrNotFound}
		}
		return failed // it was never started
	}
	// Of mount(8)'s exit statuses these say that it did, or may have done,
	// something; -1 is a signal.
	failed.uncertain = slices.Contains([]int{-1, 4, 8, 16, 64}, cmd.ProcessState.ExitCode())
	if ctx.Err() != nil {
		failed.err = fmt.Errorf("mount(8) was killed: %w", ladder.Ended(ctx))
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
	mu    sync.Mutex
	buf   bytes.Buffer
	ended bool
}

func (c *cappedBuffer) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.buf.Write(p[:min(len(p), maxOutput-c.buf.Len())])
	return len(p), nil
}

// ReadFrom is what [exec.Cmd] uses to copy. It alone learns whether the output
// came to its end or was given up.
func (c *cappedBuffer) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(struct{ io.Writer }{c}, r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = err == nil
	return n, err
}

func (c *cappedBuffer) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ended
}

func (c *cappedBuffer) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.buf.String()
}
