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
	"github.com/podvol/podvol/mount/internal/fstypes"
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
		err := m.runCommand(ctx, line, given)
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
func (m *Mounter) runCommand(ctx context.Context, line commandLine, given handover) error {
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
	cmd, err := m.startCommand(line, func() *exec.Cmd {
		cmd := exec.CommandContext(ctx, line.name, line.args...)
		cmd.Env = append(append(os.Environ(), "LC_ALL=C"), given.env...) // the output is diagnosed
		cmd.Stdout, cmd.Stderr = &output, &output
		cmd.ExtraFiles = inherited
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		cmd.Cancel = func() error { return killGroup(cmd.Process.Pid) }
		cmd.WaitDelay = m.graces.output
		return cmd
	})
	if err == nil {
		err = cmd.Wait()
		if line.cgroup {
			m.config.leaveCgroup()
		}
	}
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

// startCommand starts a command as its line says.
func (m *Mounter) startCommand(line commandLine, build func() *exec.Cmd) (*exec.Cmd, error) {
	if line.cgroup {
		if cmd := m.config.inCgroup(build); cmd != nil {
			return cmd, nil
		}
	}
	cmd := build()
	return cmd, cmd.Start()
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

// maxSecret is how long a secret may be, in bytes, to go through a pipe before
// the helper reads it. Helpers take less.
const maxSecret = 4096

// secretFD is the descriptor by which a helper gets a secret: the first after
// the standard ones.
const secretFD = 3

// handover is how the sensitive options of a request reach a helper.
type handover struct {
	// args go on the argument list, env is added to the environment.
	args, env []string
	// secret goes through descriptor secretFD, if piped is set.
	secret string
	piped  bool
}

// handOver keeps secrets out of the argument list, which every user can read,
// for helpers that take them otherwise: mount.cifs a password from the
// descriptor that $PASSWD_FD names and a user name from $USER (mount.cifs(8)),
// mount.ceph a key from a file (secretfile, mount.ceph(8)). The environment of a
// process is open to root and its own user only (proc_pid_environ(5)). All
// other types, and these without their helper, get the options as they are.
func (c Config) handOver(r mount.Request) handover {
	h := handover{args: r.Sensitive}
	if !c.hasHelper(r.FSType) {
		return h
	}
	switch fstypes.Family(r.FSType) {
	case "cifs":
		h.cifs()
	case "ceph":
		h.ceph()
	}
	return h
}

func (h *handover) cifs() {
	h.take(func(name, value string) bool {
		switch name {
		case "password", "passwd", "pass":
			return h.pipe(value)
		case "username", "user":
			// mount.cifs looks for a password behind a percent sign in $USER.
			if value == "" || strings.Contains(value, "%") {
				return false
			}
			h.env = append(h.env, "USER="+value)
			return true
		}
		return false
	})
	if h.piped {
		h.env = append(h.env, fmt.Sprintf("PASSWD_FD=%d", secretFD))
	}
}

func (h *handover) ceph() {
	h.take(func(name, value string) bool { return name == "secret" && h.pipe(value) })
	if h.piped {
		h.args = append(h.args, fmt.Sprintf("secretfile=/proc/self/fd/%d", secretFD))
	}
}

// pipe reports whether a secret fits; of several the last counts, as it would
// on the argument list.
func (h *handover) pipe(value string) bool {
	if len(value) > maxSecret {
		return false
	}
	h.secret, h.piped = value, true
	return true
}

// take leaves in args what taken does not take.
func (h *handover) take(taken func(name, value string) bool) {
	var rest []string
	for _, element := range h.args {
		for _, option := range mountopt.Split(element) {
			if name, value, _ := strings.Cut(option, "="); !taken(name, value) {
				rest = append(rest, option)
			}
		}
	}
	h.args = slices.Clip(rest)
}

// files returns what the command shall inherit beside the standard files. The
// caller closes them.
func (h *handover) files() ([]*os.File, error) {
	if !h.piped {
		return nil, nil
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	// mount.cifs takes what one read gives, so nothing is added to it. The
	// pipe holds it all, and the helper finds the end behind it.
	_, err = writer.WriteString(h.secret)
	if closeErr := writer.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		reader.Close()
		return nil, err
	}
	return []*os.File{reader}, nil
}

// commandLine is a program to run for a mount.
type commandLine struct {
	name string
	args []string
	// shown is the whole line, sensitive options masked.
	shown string
	// cgroup says that it is to run in the daemons' cgroup.
	cgroup bool
}

// inScope runs a command in a systemd scope of its own, by the kubelet's command
// line, where that is needed: in this agent's scope, a daemon that the helper
// leaves behind would be killed with the agent's service. systemd-run is looked
// up, not tried. Without systemd the daemon gets a cgroup outside of the agent's.
func (m *Mounter) inScope(ctx context.Context, r mount.Request, line commandLine) commandLine {
	if !m.config.leavesDaemon(r.FSType) {
		return line
	}
	if !m.config.hasSystemd() {
		line.cgroup = true
		return line
	}
	if _, err := exec.LookPath("systemd-run"); err != nil {
		m.config.Logger.WarnContext(ctx, "mount without a systemd scope: its daemon ends with this agent's service", "target", r.Target, "type", r.FSType, "error", err)
		return line
	}
	var scoped commandLine
	scoped.name, scoped.args, _ = k8smount.AddSystemdScopeSensitive("systemd-run", r.Target, line.name, line.args, "")
	options := scoped.args[:len(scoped.args)-len(line.args)-1] // the arguments before the command itself
	scoped.shown = "systemd-run"
	for _, o := range options {
		scoped.shown += " " + o
	}
	scoped.shown += " " + line.shown
	return scoped
}

// leavesDaemon reports whether a type is served by a daemon that its helper
// starts: FUSE and its relatives, and types with a helper that are not the
// kernel's, such as ntfs by ntfs-3g.
func (c Config) leavesDaemon(fstype string) bool {
	switch fstypes.Family(fstype) {
	case "fuse", "glusterfs":
		return true
	case "nfs", "cifs", "ceph", "":
		return false
	}
	return c.hasHelper(fstype) && !c.KernelHas(fstype)
}

// hasSystemd reports whether systemd runs this host, as sd_booted(3) does.
func (c Config) hasSystemd() bool {
	dir := c.SystemdDir
	if dir == "" {
		dir = "/run/systemd/system"
	}
	info, err := os.Lstat(dir)
	return err == nil && info.IsDir()
}
