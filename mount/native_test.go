package mount

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/util/nstest"
)

// stalled is a kernel whose mount(2) waits and then does nothing.
type stalled struct {
	hostCalls
	before func()
}

func (s stalled) mount(string, string, string, uintptr, string) error {
	s.before()
	return nil
}

// refusing is the kernel, but for some flags of mount(2) and any umount2(2).
type refusing struct {
	hostCalls
	flags uintptr
	undo  error // nil: umount2 works
}

func (r refusing) mount(source, target, fstype string, flags uintptr, data string) error {
	if flags&r.flags != 0 {
		return unix.EPERM
	}
	return r.hostCalls.mount(source, target, fstype, flags, data)
}

func (r refusing) unmount(target string, flags int) error {
	if r.undo != nil {
		return r.undo
	}
	return r.hostCalls.unmount(target, flags)
}

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
	nstest.Run(t, func(t *testing.T) {
		for name, undo := range map[string]error{"undone": nil, "undoing fails": unix.EBUSY} {
			dir := filepath.Join(t.TempDir(), "dir")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			m := New(Config{})
			m.sys = refusing{flags: unix.MS_REMOUNT, undo: undo}
			err := m.MountContext(t.Context(), Request{Source: dir, Target: dir, Options: []string{"bind", "ro"}})
			e, ok := errors.AsType[*Error](err)
			if !ok || !errors.Is(err, ErrNotPermitted) || e.Uncertain != (undo != nil) {
				t.Errorf("%s: err = %v", name, err)
			}
			if mounted, err := m.IsMountPoint(dir); err != nil || mounted != (undo != nil) {
				t.Errorf("%s: mounted = %v, %v", name, mounted, err)
			}
		}
	})
}

// swapping puts something else in the target's place just before mount(2).
type swapping struct {
	hostCalls
	swap func()
}

func (s swapping) mount(source, target, fstype string, flags uintptr, data string) error {
	s.swap()
	return s.hostCalls.mount(source, target, fstype, flags, data)
}

func TestTargetReplacedMeanwhile(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for name, put := range map[string]func(victim, target string) error{
			"by a link":      os.Symlink,
			"by a directory": func(_, target string) error { return os.Mkdir(target, 0o755) },
		} {
			t.Run(name, func(t *testing.T) {
				top := t.TempDir()
				target, victim := filepath.Join(top, "target"), filepath.Join(top, "victim")
				for _, dir := range []string{target, victim} {
					if err := os.Mkdir(dir, 0o755); err != nil {
						t.Fatal(err)
					}
				}
				m := New(Config{})
				m.sys = swapping{swap: func() {
					if err := os.Rename(target, target+"-moved"); err != nil {
						t.Error(err)
					}
					if err := put(victim, target); err != nil {
						t.Error(err)
					}
				}}
				err := m.MountContext(t.Context(), Request{Target: target, FSType: "tmpfs"})
				if e, ok := errors.AsType[*Error](err); !ok || e.Uncertain || !errors.Is(err, ErrTargetIsLink) && !errors.Is(err, ErrTargetReplaced) {
					t.Errorf("err = %v", err)
				}
				entries, err := m.table.All()
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					if isBelow(e.Target, top) {
						t.Errorf("a mount is left: %+v", e)
					}
				}
			})
		}
	})
}

func TestLogIsMasked(t *testing.T) {
	var b strings.Builder
	m := New(Config{Logger: slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	m.sys = refusing{flags: unix.MS_RDONLY}
	err := m.MountContext(t.Context(), Request{Target: t.TempDir(), FSType: "tmpfs", Options: []string{"ro", "size=1m"}, Sensitive: []string{"secret=hunter2"}})
	log := b.String()
	if !errors.Is(err, ErrNotPermitted) || strings.Contains(log+err.Error(), "hunter2") || !strings.Contains(log, "size=1m") || !strings.Contains(log, "not permitted") {
		t.Errorf("err = %v, log %q", err, log)
	}
}
