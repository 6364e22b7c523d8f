package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stage returns this program as a further process, in new namespaces. It is killed when
// this process dies, and when ctx ends. The caller's goroutine must keep its thread.
func stage(ctx context.Context, name string, o options, namespaces uintptr) (*exec.Cmd, error) {
	told, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe", name, string(told))
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "TMPDIR="+tmpDir(name))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: namespaces}
	return cmd, nil
}

// tmpDir is the directory of a stage's temporary files: a node has its own, and the
// others' are removed with the run's directory.
func tmpDir(stage string) string {
	if strings.HasPrefix(stage, "node-") {
		return "/tmp"
	}
	return base + "/tmp"
}

// reap is process 1 of a namespace: it starts one stage, waits for all that others leave
// to it, and ends when the stage does. The kernel ends everything else then.
func reap(name string, o options) error {
	cmd, err := stage(context.Background(), name, o, 0)
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case pid == cmd.Process.Pid && status.ExitStatus() == 0:
			return nil
		case pid == cmd.Process.Pid:
			return fmt.Errorf("%s: %w", name, exitError(status))
		}
	}
}

func exitError(status unix.WaitStatus) error {
	if status.Signaled() {
		return fmt.Errorf("ended by %s", status.Signal())
	}
	return fmt.Errorf("exit status %d", status.ExitStatus())
}

// mountOwn gives a mount namespace its own /proc, and keeps its mounts from others.
func mountOwn() error {
	return errors.Join(
		mounting("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		mounting("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""),
	)
}

func mounting(source, target, fsType string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fsType, flags, data); err != nil {
		return fmt.Errorf("mount %s at %s: %w", source, target, err)
	}
	return nil
}
