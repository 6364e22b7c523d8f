package host

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// Whichever call hangs: who has given up is told that nothing was mounted, and
// nothing ever is, nor is a descriptor left when the call comes back. Only the
// call that takes effect leaves doubt.
func TestGivenUpMountNeverAppears(t *testing.T) {
	tmpfs := []string{"fsopen", "fsconfig", "create", "fsmount", "move_mount"}
	bind := []string{"open_tree", "mount_setattr", "move_mount"}
	for name, tc := range map[string]struct {
		request string
		calls   []string
		lacking []string // calls that the kernel does not have
	}{
		"tmpfs":             {request: "tmpfs src a ro,size=64k", calls: tmpfs},
		"bind":              {request: "- b a bind,ro", calls: bind},
		"rbind, recursive":  {request: "- b a rbind,ro=recursive,noexec", calls: bind},
		"tmpfs by mount(2)": {request: "tmpfs src a ro", calls: []string{"mount"}, lacking: []string{"fsopen"}},
		"fallen back":       {request: "tmpfs src a ro", calls: []string{"fsopen", "fsmount", "mount"}, lacking: []string{"fsmount"}},
		"bind by mount(2)":  {request: "- b a bind", calls: []string{"open_tree", "mount"}, lacking: []string{"open_tree"}},
	} {
		t.Run(name, func(t *testing.T) {
			nstest.Run(t, func(t *testing.T) {
				base := t.TempDir()
				for _, dir := range []string{"a", "b"} {
					if err := os.Mkdir(filepath.Join(base, dir), 0o755); err != nil {
						t.Fatal(err)
					}
				}
				for _, hanging := range tc.calls {
					effective := hanging == "move_mount" || hanging == "mount"
					giveUp(t, request(base, tc.request), hanging, tc.lacking, effective)
				}
			})
		})
	}
}

// giveUp makes a request whose caller leaves while a call hangs.
func giveUp(t *testing.T, r mount.Request, hanging string, lacking []string, effective bool) {
	t.Helper()
	descriptors := testtool.OpenFiles(t)
	entered, release := make(chan struct{}, 16), make(chan struct{})
	m := New(Config{Via: ViaSystemCalls})
	m.api = hooked{before: func(call string) error {
		if call == hanging {
			entered <- struct{}{}
			<-release
		}
		if slices.Contains(lacking, call) {
			return unix.ENOSYS
		}
		return nil
	}}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() { failed <- m.MountContext(ctx, r) }()
	<-entered
	cancel()
	err := <-failed
	if e, ok := errors.AsType[*mount.Error](err); !ok || !errors.Is(err, mount.ErrCanceled) || e.Uncertain != effective {
		t.Errorf("%s hangs: err = %v", hanging, err)
	}
	close(release)
	// Whoever comes next for this target comes after the call has returned.
	wait, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := m.calls.Do(wait, mountKey(r.Target), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	_, mounted, err := mounttable.Uncached{}.At(r.Target)
	if err != nil {
		t.Fatal(err)
	}
	if mounted && !effective {
		t.Errorf("%s hung: the mount appeared after its caller was told that it would not", hanging)
	}
	if mounted {
		if err := unix.Unmount(r.Target, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
	if now := testtool.OpenFiles(t); now != descriptors {
		t.Errorf("%s hung: %d descriptors were open before, %d are now", hanging, descriptors, now)
	}
}

// A context that ends between the preparations and the last call is looked at.
func TestContextEndsJustBeforeTheLastCall(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		for _, words := range []string{"tmpfs src . size=64k", "- . . bind,ro"} {
			base := t.TempDir()
			ctx, cancel := context.WithCancel(t.Context())
			m := New(Config{Via: ViaSystemCalls})
			m.api = hooked{before: func(call string) error {
				switch call {
				case "fsmount", "mount_setattr":
					cancel()
				case "move_mount", "mount":
					t.Errorf("%s: %s after the context had ended", words, call)
				}
				return nil
			}}
			err := m.MountContext(ctx, request(base, words))
			if e, ok := errors.AsType[*mount.Error](err); !ok || !errors.Is(err, mount.ErrCanceled) || e.Uncertain {
				t.Errorf("%s: err = %v", words, err)
			}
		}
	})
}

// A remount of which a part has taken effect is not called certain.
func TestPartOfARemountLeavesDoubt(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		m := New(Config{Via: ViaSystemCalls})
		if err := m.Mount("x", dir, "tmpfs", nil); err != nil {
			t.Fatal(err)
		}
		changes := 0
		m.api = hooked{before: func(call string) error {
			if call == "mount_setattr" {
				if changes++; changes > 1 {
					return unix.EIO
				}
			}
			return nil
		}}
		err := m.MountContext(t.Context(), mount.Request{Target: dir, Options: []string{"remount", "bind", "noexec", "shared"}})
		if e, ok := errors.AsType[*mount.Error](err); !ok || !e.Uncertain || !errors.Is(err, unix.EIO) {
			t.Errorf("err = %v", err)
		}
		m.api = hooked{before: func(call string) error {
			if call == "mount_setattr" {
				return unix.EIO
			}
			return nil
		}}
		err = m.MountContext(t.Context(), mount.Request{Target: dir, Options: []string{"remount", "bind", "noexec", "shared"}})
		if e, ok := errors.AsType[*mount.Error](err); !ok || e.Uncertain {
			t.Errorf("nothing has changed: %v", err)
		}
	})
}
