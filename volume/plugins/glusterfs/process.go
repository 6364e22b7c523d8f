package glusterfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	procDir = "/proc"
	// flushing is how long a client may take to end after its mount is gone.
	flushing = 30 * time.Second
	// settling is how long that may take which an agent that was killed has not waited for.
	settling = 5 * time.Second
	// dying is how long a killed client may take to end.
	dying = 5 * time.Second
	// glance is how long a wait is before its context is looked at again.
	glance = 100 * time.Millisecond
)

// endClients waits for the end of all clients of a directory, which is not mounted, and
// kills those that are stopped, or left after the patience. A mount helper of a killed agent,
// which would start one, counts as such. Without a log file no client was started since the
// last call.
func (c *client) endClients(ctx context.Context, dir string, patience time.Duration) error {
	if _, err := os.Lstat(c.logFile()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	deadline := time.Now().Add(patience)
	for {
		clients, err := findClients(dir)
		if err == nil && len(clients) > 0 {
			err = end(ctx, dir, clients, deadline)
		}
		for _, p := range clients {
			unix.Close(p.fd)
		}
		if err != nil || len(clients) == 0 {
			return err // a helper that has ended may have left a client
		}
	}
}

// end waits for the end of processes until a deadline, and kills those that are left.
func end(ctx context.Context, dir string, clients []process, deadline time.Time) error {
	for _, p := range clients {
		ended := false
		if !p.helper { // which a killed agent has left
			var err error
			if ended, err = p.await(ctx, deadline); err != nil {
				return err
			}
		}
		if ended {
			continue
		}
		if err := unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end process %d, a client of %s: %w", p.pid, dir, err)
		}
	}
	deadline = time.Now().Add(dying)
	for _, p := range clients {
		if ended, err := p.await(ctx, deadline); err != nil || !ended {
			return errors.Join(fmt.Errorf("process %d, a client of %s, was killed and does not end", p.pid, dir), err)
		}
	}
	return nil
}

// process is a client, held by a descriptor: its number may become another's.
type process struct {
	pid, fd int
	helper  bool // it is mount(8) or its helper, and no client
}

// findClients finds the clients that have mounted at a directory, or are about to. The
// caller closes their descriptors, also beside an error.
func findClients(dir string) (found []process, err error) {
	entries, err := os.ReadDir(procDir)
	if err != nil {
		return nil, err
	}
	dir = realPath(dir)
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if is, _ := isClient(pid, dir); !is {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return found, os.NewSyscallError("pidfd_open", err)
		}
		is, helper := isClient(pid, dir)
		if !is { // another one by now
			unix.Close(fd)
			continue
		}
		found = append(found, process{pid, fd, helper})
	}
	return found, nil
}

// realPath is a mount point as mount(8) hands it to its helper. What is mounted there is not
// looked at, as its client may hang.
func realPath(dir string) string {
	above, err := filepath.EvalSymlinks(filepath.Dir(dir))
	if err != nil {
		return dir
	}
	return filepath.Join(above, filepath.Base(dir))
}

// isClient reports whether a process is a client of a directory, which is its last argument,
// or mount(8) or its helper, which is about to start one.
func isClient(pid int, dir string) (is, helper bool) {
	line, err := os.ReadFile(filepath.Join(procDir, strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return false, false
	}
	args := bytes.Split(bytes.TrimSuffix(line, []byte{0}), []byte{0})
	runs := func(i int, programs ...string) bool {
		return i < len(args) && slices.Contains(programs, filepath.Base(string(args[i])))
	}
	switch {
	case runs(0, "glusterfs", "glusterfsd"):
		return string(args[len(args)-1]) == dir, false
	case runs(0, "mount"), runs(1, "mount.glusterfs"): // which is a script
		return slices.ContainsFunc(args, func(a []byte) bool { return string(a) == dir }), true
	}
	return false, false
}

// serves reports whether a process is a client that could serve a mount, which takes several
// threads. That which only unmounts when it has died has one.
func (p process) serves() bool {
	threads, err := os.ReadDir(filepath.Join(procDir, strconv.Itoa(p.pid), "task"))
	return !p.helper && (err == nil && len(threads) > 1 || err != nil && !errors.Is(err, fs.ErrNotExist))
}

// await reports whether a process has ended by a deadline. It does not wait for one that is
// stopped.
func (p process) await(ctx context.Context, deadline time.Time) (ended bool, err error) {
	for {
		left := time.Until(deadline)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, int(max(0, min(left, glance)).Milliseconds()))
		switch {
		case err != nil && !errors.Is(err, unix.EINTR):
			return false, os.NewSyscallError("poll", err)
		case n > 0:
			return true, nil
		case ctx.Err() != nil:
			return false, context.Cause(ctx)
		case left <= 0 || p.isStopped():
			return false, nil
		}
	}
}

func (p process) isStopped() bool {
	stat, err := os.ReadFile(filepath.Join(procDir, strconv.Itoa(p.pid), "stat"))
	_, state, ok := bytes.Cut(stat, []byte(") ")) // proc_pid_stat(5)
	return err == nil && ok && len(state) > 0 && (state[0] == 'T' || state[0] == 't')
}
