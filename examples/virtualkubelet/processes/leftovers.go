package processes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// leftovers remembers in files which processes run for which pods. The kernel
// kills them with the agent that has started them; before their volumes go, or
// others are started in their place, the next agent makes sure of it.
type leftovers struct {
	dir  string
	boot string // the processes of another boot are gone
}

func newLeftovers(dir string) (*leftovers, error) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return &leftovers{dir, strings.TrimSpace(string(boot))}, err
}

const suffix = ".process"

func (l *leftovers) file(pod types.UID, container string) string {
	return filepath.Join(l.dir, string(pod), container+suffix)
}

// note remembers the process that runs for a container. One that has ended already leaves
// nothing to end: it has run, and is not started again for that.
func (l *leftovers) note(pod types.UID, container string, pid int) error {
	began, err := beginning(pid)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(l.file(pod, container), fmt.Appendf(nil, "%s %d %s", l.boot, pid, began), 0o600)
}

// forget is for one that has ended.
func (l *leftovers) forget(pod types.UID, container string) { _ = os.Remove(l.file(pod, container)) }

// pods lists those that have files.
func (l *leftovers) pods() (pods []types.UID, err error) {
	entries, err := os.ReadDir(l.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		pods = append(pods, types.UID(e.Name()))
	}
	return pods, err
}

// drop removes all files of a pod that has gone.
func (l *leftovers) drop(pod types.UID) error {
	files, err := filepath.Glob(filepath.Join(l.dir, string(pod), "*"))
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	if gone := os.Remove(filepath.Join(l.dir, string(pod))); !errors.Is(gone, fs.ErrNotExist) {
		err = errors.Join(err, gone)
	}
	return err
}

// end kills what still runs for a pod that this agent has not started, and
// returns nil once nothing does.
func (l *leftovers) end(ctx context.Context, pod types.UID) error {
	files, err := filepath.Glob(l.file(pod, "*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		noted, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var boot, began string
		var pid int
		if _, err := fmt.Sscan(string(noted), &boot, &pid, &began); err == nil && boot == l.boot {
			if err := endProcess(ctx, pid, began); err != nil {
				return fmt.Errorf("process %d, which an earlier agent has started: %w", pid, err)
			}
		}
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	return nil
}

// endProcess kills the process of that number that began at that time.
func endProcess(ctx context.Context, pid int, began string) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	defer unix.Close(fd)
	if is, err := beginning(pid); err != nil || is != began {
		return nil // it is gone, and its number may be another's
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return os.NewSyscallError("pidfd_send_signal", err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 100)
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return os.NewSyscallError("poll", err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(deadline):
			return errors.New("it does not die")
		}
	}
}

// beginning is when a process began, in the kernel's ticks since the boot: with
// its number it names it for ever.
func beginning(pid int) (string, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // names may have spaces
	if len(fields) < 20 {
		return "", fmt.Errorf("/proc/%d/stat has only %d fields", pid, len(fields))
	}
	return string(fields[19]), nil
}
