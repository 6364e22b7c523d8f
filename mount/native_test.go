package mount

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// stalled is a kernel whose mount(2) waits, or fails on some flags.
type stalled struct {
	before  func()
	refuses uintptr
	undo    error // of umount2(2)
}

func (s stalled) mount(_, _, _ string, flags uintptr, _ string) error {
	if s.before != nil {
		s.before()
	}
	if flags&s.refuses != 0 {
		return unix.EPERM
	}
	return nil
}

func (s stalled) unmount(string, int) error { return s.undo }

func TestNativeMountGivenUp(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		end := make(chan struct{})
		m := New(Config{})
		var made int
		m.sys = stalled{before: func() { made++; <-end }}
		// The first has reached the kernel when its caller leaves: uncertain.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := m.MountContext(ctx, Request{Target: dir, FSType: "tmpfs"})
		if e, ok := errors.AsType[*Error](err); !ok || !e.Uncertain || !errors.Is(err, ErrTimedOut) {
			t.Errorf("err = %v", err)
		}
		// A context that has ended begins nothing, and says so.
		err = m.MountContext(ctx, Request{Target: dir, FSType: "tmpfs"})
		if e, ok := errors.AsType[*Error](err); !ok || e.Uncertain {
			t.Errorf("err = %v", err)
		}
		close(end)
		synctest.Wait()
		if made != 1 {
			t.Errorf("%d mounts were made", made)
		}
	})
}

func TestGate(t *testing.T) {
	var g gate
	if !g.take() || g.take() {
		t.Error("not exactly one may take it")
	}
	// The caller was first: the mount is not made.
	n := native{sys: stalled{before: func() { t.Error("mounted") }}, gate: &g, request: Request{Target: t.TempDir(), FSType: "tmpfs"}}
	defer n.close()
	if err := n.run(); !errors.Is(err, errGivenUp) {
		t.Errorf("err = %v", err)
	}
}

func TestBindWhoseOptionsAreRefused(t *testing.T) {
	for name, undo := range map[string]error{"undone": nil, "undoing fails": unix.EBUSY} {
		t.Run(name, func(t *testing.T) {
			m := New(Config{})
			m.sys = stalled{refuses: unix.MS_REMOUNT, undo: undo}
			dir := t.TempDir()
			err := m.MountContext(t.Context(), Request{Source: dir, Target: dir, Options: []string{"bind", "ro"}})
			e, ok := errors.AsType[*Error](err)
			if !ok || !errors.Is(err, ErrNotPermitted) || e.Uncertain != (undo != nil) {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestLogIsMasked(t *testing.T) {
	var b strings.Builder
	m := New(Config{Logger: slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	m.sys = stalled{}
	err := m.MountContext(t.Context(), Request{Target: t.TempDir(), FSType: "tmpfs", Options: []string{"size=1m"}, Sensitive: []string{"secret=hunter2"}})
	if err != nil || strings.Contains(b.String(), "hunter2") || !strings.Contains(b.String(), "size=1m") {
		t.Errorf("err = %v, log %q", err, b.String())
	}
}
