package host

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

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mountapi"
	"github.com/podvol/podvol/util/pathin"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// stalled is a kernel whose move_mount waits and then does nothing.
type stalled struct {
	mountapi.Kernel
	before func()
}

func (s stalled) Fsopen(string) (int, error)                 { return unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0) }
func (s stalled) SetString(int, string, string) error        { return nil }
func (s stalled) Create(int) error                           { return nil }
func (s stalled) Fsmount(context int, _ uint64) (int, error) { return unix.Dup(context) }
func (s stalled) MoveMount(int, int) error                   { s.before(); return unix.EIO }

// refusing is the kernel, but for any change of propagation and any umount2(2).
type refusing struct {
	mountapi.Kernel
	hostCalls
	undo error // nil: umount2 works
}

func (refusing) MountSetattr(mount int, recursive bool, a unix.MountAttr) error {
	if a.Propagation != 0 {
		return unix.ENOMEM
	}
	return mountapi.Kernel{}.MountSetattr(mount, recursive, a)
}

func (c refusing) unmountOnce(target string, flags int) error { return c.unmount(target, flags) }

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
		m.api = stalled{before: func() { made++; <-end }}
		// The first has reached the kernel when its caller leaves: uncertain.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := m.MountContext(ctx, mount.Request{Target: dir, FSType: "tmpfs"})
		if e, ok := errors.AsType[*mount.Error](err); !ok || !e.Uncertain || !errors.Is(err, mount.ErrTimedOut) {
			t.Errorf("err = %v", err)
		}
		// A context that has ended begins nothing, and says so.
		err = m.MountContext(ctx, mount.Request{Target: dir, FSType: "tmpfs"})
		if e, ok := errors.AsType[*mount.Error](err); !ok || e.Uncertain {
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
	// The caller was first: the mount is not made.
	n := native{api: stalled{before: func() { t.Error("mounted") }}, request: mount.Request{Target: t.TempDir(), FSType: "tmpfs"}}
	if !n.gate.take() || n.gate.take() {
		t.Error("not exactly one may take it")
	}
	defer n.close()
	if err := n.run(t.Context()); !errors.Is(err, errGivenUp) {
		t.Errorf("err = %v", err)
	}
}

func TestMountThatCannotBeFinishedIsUndone(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for name, undo := range map[string]error{"undone": nil, "undoing fails": unix.EBUSY} {
			dir := filepath.Join(t.TempDir(), "dir")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			m := New(Config{})
			m.api, m.sys = refusing{}, refusing{undo: undo}
			err := m.MountContext(t.Context(), mount.Request{Source: dir, Target: dir, Options: []string{"bind", "shared"}})
			e, ok := errors.AsType[*mount.Error](err)
			if !ok || !errors.Is(err, unix.ENOMEM) || e.Uncertain != (undo != nil) {
				t.Errorf("%s: err = %v", name, err)
			}
			if mounted, err := m.IsMountPoint(dir); err != nil || mounted != (undo != nil) {
				t.Errorf("%s: mounted = %v, %v", name, mounted, err)
			}
		}
	})
}

// swapping puts something else in the target's place just before the mount.
type swapping struct {
	mountapi.Kernel
	swap func()
}

func (s swapping) MoveMount(mount, target int) error {
	s.swap()
	return s.Kernel.MoveMount(mount, target)
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
				m.api = swapping{swap: func() {
					if err := os.Rename(target, target+"-moved"); err != nil {
						t.Error(err)
					}
					if err := put(victim, target); err != nil {
						t.Error(err)
					}
				}}
				err := m.MountContext(t.Context(), mount.Request{Target: target, FSType: "tmpfs"})
				if e, ok := errors.AsType[*mount.Error](err); !ok || e.Uncertain || !errors.Is(err, mount.ErrTargetIsLink) && !errors.Is(err, mount.ErrTargetReplaced) {
					t.Errorf("err = %v", err)
				}
				entries, err := m.table.All()
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range entries {
					if pathin.In(top, e.Target) {
						t.Errorf("a mount is left: %+v", e)
					}
				}
			})
		}
	})
}

// A link on the way to the target leads elsewhere before the mount is made: into the
// file system of another mount, where no mount is at the target's name.
func TestWayToTheTargetReplacedMeanwhile(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		top := t.TempDir()
		good, other, link := testtool.MkdirAll(t, top, "good"), testtool.MkdirAll(t, top, "other"), filepath.Join(top, "link")
		testtool.MkdirAll(t, good, "volume")
		testtool.Must(t, unix.Mount("other", other, "tmpfs", 0, "size=64k"))
		testtool.MkdirAll(t, other, "volume")
		testtool.Must(t, os.Symlink(good, link))
		m := New(Config{})
		m.api = swapping{swap: func() {
			testtool.Must(t, os.Remove(link))
			testtool.Must(t, os.Symlink(other, link))
		}}
		err := m.MountContext(t.Context(), mount.Request{Source: top, Target: filepath.Join(link, "volume"), Options: []string{"bind"}})
		if e, ok := errors.AsType[*mount.Error](err); !ok || e.Uncertain || !errors.Is(err, mount.ErrTargetReplaced) {
			t.Errorf("err = %v", err)
		}
		for _, dir := range []string{good, other} {
			if _, ok, err := m.table.At(filepath.Join(dir, "volume")); ok || err != nil {
				t.Errorf("below %s: mounted %v, %v", dir, ok, err)
			}
		}
	})
}

// denying is a kernel that refuses every mount.
type denying struct{ mountapi.Kernel }

func (denying) Fsopen(string) (int, error)                          { return -1, unix.EPERM }
func (denying) Mount(string, string, string, uintptr, string) error { return unix.EPERM }

func TestLogIsMasked(t *testing.T) {
	var b strings.Builder
	m := New(Config{Logger: slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelDebug}))})
	m.api = denying{}
	err := m.MountContext(t.Context(), mount.Request{Target: t.TempDir(), FSType: "tmpfs", Options: []string{"ro", "size=1m"}, Sensitive: []string{"secret=hunter2"}})
	log := b.String()
	if !errors.Is(err, mount.ErrNotPermitted) || strings.Contains(log+err.Error(), "hunter2") || !strings.Contains(log, "size=1m") || !strings.Contains(log, "not permitted") {
		t.Errorf("err = %v, log %q", err, log)
	}
}
