package hostns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/internal/failure"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/eintr"
)

// Main must be called at the start of main, before flags are read or anything is begun, by
// every program that uses this package (a test binary: in TestMain). It returns at once,
// unless this process was started to mount in the host's namespaces; then it does, and
// never returns.
func Main() {
	if len(os.Args) != 1 || os.Args[0] != childName {
		return
	}
	if err := child(os.NewFile(socketFD, "agent")); err != nil {
		fmt.Fprintln(os.Stderr, childName+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// errAgentGone says why calls end that the agent does not wait for any more.
var errAgentGone = errors.New("the agent has ended")

// lastPatience is how long the child waits for calls after the agent's end: a killed
// mount helper ends soon. What hangs in the kernel is left.
const lastPatience = 5 * time.Second

// server is the child.
type server struct {
	wire    *wire
	mounter *host.Mounter
	leave   func() // the cgroups

	mu    sync.Mutex
	calls map[uint64]context.CancelCauseFunc
	work  sync.WaitGroup
}

// child serves until the agent ends.
func child(socket *os.File) error {
	w, err := newWire(socket)
	if err != nil {
		return err
	}
	s := &server{wire: w, leave: func() {}, calls: make(map[uint64]context.CancelCauseFunc)}
	var hello question
	if _, err := w.receive(&hello); err != nil {
		return unlessEnded(err)
	}
	namespace, err := s.begin(hello.Settings)
	if err := w.send(answer{ID: hello.ID, Failed: send(err), Namespace: namespace}, nil); err != nil || namespace == "" {
		return unlessEnded(err)
	}
	for {
		var q question
		file, err := w.receive(&q)
		if err != nil {
			s.end()
			return unlessEnded(err)
		}
		s.take(q, file)
	}
}

func unlessEnded(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) {
		return nil
	}
	return err
}

// begin makes the mounter. Its error is no hindrance if a namespace is returned with it.
func (s *server) begin(settings settings) (namespace string, err error) {
	config := settings.config()
	config.Logger = slog.New(slog.NewJSONHandler(logFrames{s.wire}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if settings.OwnProcesses {
		config.SystemdDir = "/nonexistent" // systemd would take this process's number for another's
	}
	s.mounter = host.New(config)
	if namespace, err = os.Readlink("/proc/self/ns/mnt"); err != nil {
		return "", fmt.Errorf("the host has no /proc: %w", err)
	}
	if settings.Cgroup == "" || runsSystemd(config.SystemdDir) {
		return namespace, nil
	}
	mounts, err := s.mounter.Table().All()
	if err == nil {
		s.leave, err = joinCgroup(settings.Cgroup, mounts)
	}
	return namespace, err
}

// end cancels the calls under way, and waits for them.
func (s *server) end() {
	s.mu.Lock()
	for _, cancel := range s.calls {
		cancel(errAgentGone)
	}
	s.mu.Unlock()
	defer s.leave()
	ended := make(chan struct{})
	go func() { s.work.Wait(); close(ended) }()
	limit := time.NewTimer(lastPatience)
	defer limit.Stop()
	select {
	case <-ended:
	case <-limit.C:
	}
}

// take answers a question in a goroutine of its own.
func (s *server) take(q question, file *os.File) {
	if q.Op == opCancel {
		s.mu.Lock()
		defer s.mu.Unlock()
		if cancel := s.calls[q.ID]; cancel != nil {
			cancel(context.Canceled)
		}
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	s.mu.Lock()
	s.calls[q.ID] = cancel
	s.mu.Unlock()
	s.work.Go(func() {
		defer func() {
			s.mu.Lock()
			delete(s.calls, q.ID)
			s.mu.Unlock()
			cancel(nil)
			if file != nil {
				file.Close()
			}
		}()
		if q.Left > 0 {
			late, stop := context.WithTimeout(ctx, q.Left)
			defer stop()
			ctx = late
		}
		a, err := s.answer(ctx, q, file)
		a.ID, a.Failed = q.ID, send(err)
		_ = s.wire.send(a, nil) // an agent that has ended needs none
	})
}

func (s *server) answer(ctx context.Context, q question, file *os.File) (a answer, err error) {
	m, mounts := s.mounter, s.mounter.Table()
	switch q.Op {
	case opMount, opMountBy:
		return a, s.mount(ctx, q, file)
	case opUnmount:
		a.Rung, err = m.UnmountContext(ctx, q.Path, q.Options)
	case opList:
		a.Points, err = m.List()
	case opPoint:
		a.Found, err = m.IsMountPoint(q.Path)
	case opRefs:
		a.Paths, err = m.GetMountRefs(q.Path)
	case opAt:
		a.Entry, a.Found, err = mounts.At(q.Path)
	case opSource:
		a.Entries, err = mounts.BySource(q.Path)
	case opDevice:
		a.Entries, err = mounts.ByDevice(q.Device)
	case opAll:
		a.Entries, err = mounts.All()
	case opBelow:
		a.Entries, err = mount.Below(mounts, q.Path)
	case opContains:
		a.Entry, err = table.Containing(mounts, q.Path)
	case opSubscribe:
		changes := mounts.Subscribe(ctx)
		if err := s.wire.send(answer{ID: q.ID, Changed: true}, nil); err != nil { // what came before this is not seen
			return a, err
		}
		for range changes {
			if err := s.wire.send(answer{ID: q.ID, Changed: true}, nil); err != nil {
				return a, err
			}
		}
	default:
		err = fmt.Errorf("%q is no question", q.Op)
	}
	return a, err
}

func (s *server) mount(ctx context.Context, q question, file *os.File) error {
	r := q.Request
	if file != nil {
		here, err := reopen(file, q.Path)
		if err != nil {
			return r.NotBegun(err)
		}
		defer here.Close()
		r.Source = fmt.Sprintf("/proc/self/fd/%d", here.Fd())
	}
	var err error
	if q.Op == opMountBy {
		err = s.mounter.MountSensitiveWithoutSystemdWithMountFlags(r.Source, r.Target, r.FSType, r.Options, r.Sensitive, q.Flags)
	} else {
		err = s.mounter.MountContext(ctx, r)
	}
	if own, ok := errors.AsType[*mount.Error](err); ok && file != nil {
		shown := *own
		shown.Source = q.Request.Source // by which the agent knows it
		return &shown
	}
	return err
}

// reopen opens on the host what a descriptor of the agent's is. The path has no links; if one
// has come there, or another file, it is not what was meant.
func reopen(file *os.File, path string) (*os.File, error) {
	fd, err := eintr.Get(func() (int, error) {
		return unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS})
	})
	if err != nil {
		return nil, failure.Of(mount.ErrNoSource, fmt.Errorf("the host has not what the agent sees at %s: %w", path, err))
	}
	here := os.NewFile(uintptr(fd), path)
	same, err := isSame(here, file)
	if err == nil && !same {
		err = failure.Of(mount.ErrNoSource, fmt.Errorf("the host has something else at %s than the agent", path))
	}
	if err != nil {
		here.Close()
		return nil, err
	}
	return here, nil
}

// isSame never asks a server.
func isSame(a, b *os.File) (bool, error) {
	var of [2]unix.Statx_t
	for i, f := range []*os.File{a, b} {
		err := eintr.Do(func() error {
			return unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_TYPE, &of[i])
		})
		if err != nil {
			return false, os.NewSyscallError("statx", err)
		}
	}
	same := of[0].Ino == of[1].Ino && of[0].Dev_major == of[1].Dev_major && of[0].Dev_minor == of[1].Dev_minor && of[0].Mode&unix.S_IFMT == of[1].Mode&unix.S_IFMT
	return same, nil
}

// logFrames sends log records to the agent.
type logFrames struct{ wire *wire }

func (l logFrames) Write(record []byte) (int, error) {
	return len(record), l.wire.send(answer{Log: record}, nil)
}
