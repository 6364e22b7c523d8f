package host_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/silentfuse"
)

// mountSilentFUSE mounts a file system whose server answers one question about
// its root and then never again. It is closed at the end of the test.
func mountSilentFUSE(t *testing.T, target string) *silentfuse.Server {
	t.Helper()
	silentfuse.Need(t)
	s, err := silentfuse.Mount("silent", target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	if _, err := os.Lstat(target); err != nil {
		t.Fatalf("the first question: %v", err)
	}
	s.FallSilent()
	return s
}

// withStuckProcess mounts a silent file system and starts a process that asks
// it something and hangs.
func withStuckProcess(t *testing.T, target string) (*silentfuse.Server, int) {
	t.Helper()
	s := mountSilentFUSE(t, target)
	pid := startHolder(t, "/proc/self/exe", "stat "+target, nil)
	t.Cleanup(s.Close) // before the process is waited for
	if opcode := <-s.Asked(); opcode != silentfuse.Getattr {
		t.Fatalf("the process asks %d", opcode)
	}
	return s, pid
}

// promptly fails the test if f takes long enough to have touched the file
// system: that would take for ever.
func promptly(t *testing.T, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s hangs", what)
	}
}

func TestQuestionsAboutASilentFileSystem(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		target := t.TempDir()
		withStuckProcess(t, target)
		m := host.New(host.Config{})
		mounts := table.Of(m)
		promptly(t, "At", func() error {
			e, ok, err := mounts.At(target)
			if !ok || e.FSType != "fuse.silent" {
				t.Errorf("At = %+v, %v", e, ok)
			}
			return err
		})
		promptly(t, "IsMountPoint", func() error {
			is, err := m.IsMountPoint(target)
			if !is {
				t.Error("it is no mount point")
			}
			return err
		})
		promptly(t, "IsLikelyNotMountPoint", func() error {
			not, err := m.IsLikelyNotMountPoint(target)
			if not {
				t.Error("it is likely no mount point")
			}
			return err
		})
		promptly(t, "List", func() error { _, err := m.List(); return err })
		promptly(t, "GetMountRefs", func() error { _, err := m.GetMountRefs(target); return err })
	})
}

func TestLadderOnASilentFileSystem(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		var log bytes.Buffer
		m := host.New(host.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		isMounted := func(target string) bool { _, ok := mounttest.EntryAt(t, target); return ok }
		for _, tc := range []struct {
			name    string
			options mount.UnmountOptions
			limit   time.Duration // of the context; 0 is none
			rung    mount.Rung
			err     error
			or      error // what the same may be called, where the kernel is slow
			freed   bool  // the stuck process goes on
			loss    string
		}{
			{name: "normal alone", rung: mount.RungNormal, err: mount.ErrBusy},
			{name: "normal, as long as the context lasts", options: mount.UnmountOptions{ForceAfter: time.Hour}, limit: 300 * time.Millisecond, rung: mount.RungNormal, err: mount.ErrBusy, or: context.DeadlineExceeded},
			{name: "force", options: mount.UnmountOptions{ForceAfter: 100 * time.Millisecond, LazyAfter: time.Hour}, rung: mount.RungForce, freed: true, loss: "The daemon was cut off"},
			{name: "lazy", options: mount.UnmountOptions{LazyAfter: 100 * time.Millisecond}, rung: mount.RungLazy, loss: "lives on out of sight"},
		} {
			t.Run(tc.name, func(t *testing.T) {
				leaks := goleak.IgnoreCurrent()
				log.Reset()
				target, other := t.TempDir(), t.TempDir()
				s, pid := withStuckProcess(t, target)
				ctx, cancel := context.WithCancel(t.Context())
				if tc.limit > 0 {
					ctx, cancel = context.WithTimeout(t.Context(), tc.limit)
				}
				defer cancel()
				start := time.Now()
				rung, err := m.UnmountContext(ctx, target, tc.options)
				as := errors.Is(err, tc.err) || tc.or != nil && errors.Is(err, tc.or)
				if rung != tc.rung || !as || (err == nil) != (tc.err == nil) {
					t.Errorf("rung %v, err = %v", rung, err)
				}
				if took := time.Since(start); took > 30*time.Second { // the next rung would be an hour away
					t.Errorf("it took %v", took)
				}
				if isMounted(target) != (tc.err != nil) {
					t.Errorf("mounted: %v", tc.err == nil)
				}
				if text := log.String(); tc.loss == "" && text != "" || !strings.Contains(text, tc.loss) {
					t.Errorf("the log says %q, want %q", text, tc.loss)
				}
				notice := 200 * time.Millisecond
				if tc.freed {
					notice = time.Minute
				}
				select {
				case <-s.Gone():
					if !tc.freed {
						t.Error("its server was cut off")
					}
				case <-time.After(notice):
					if tc.freed {
						t.Error("its server still serves")
					}
				}
				if err := unix.Kill(pid, 0); err != nil {
					t.Errorf("the stuck process: %v", err)
				}
				// No other mount is held up, whatever hangs here.
				mounttest.Mount(t, mounttest.Tmpfs(other))
				if err := mounttest.Unmount(t, other); err != nil {
					t.Error(err)
				}
				s.Close()
				if tc.err != nil {
					// What waited fails now, and lets go of the mount a moment later.
					_, again := m.UnmountContext(t.Context(), target, mount.UnmountOptions{LazyAfter: 10 * time.Second})
					// Unless the call that was given up has done it by then.
					if late := errors.Is(err, context.DeadlineExceeded) && errors.Is(again, mount.ErrNotMounted); again != nil && !late {
						t.Error(again)
					}
				}
				noneLeaks(t, leaks, goleak.IgnoreTopFunction("os/exec.(*Cmd).watchCtx"))
			})
		}
	})
}

func TestHolderStuckInASilentFileSystem(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		target := t.TempDir()
		mountSilentFUSE(t, target)
		held, err := unix.Open(target, unix.O_PATH, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(held)
		promptly(t, "the search for holders", func() error {
			if e := busyError(t, target); len(e.Holders) != 1 || e.Holders[0].PID != os.Getpid() || e.Holders[0].How != "open file "+target {
				t.Errorf("holders %q", e.Holders)
			}
			return nil
		})
	})
}
