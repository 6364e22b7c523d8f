package podmount_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/podmount"
	"github.com/podvol/podvol/volume/lazyunmount"
	"github.com/podvol/podvol/volume/meter"
)

const source = "server:/export"

func isShare(e mount.Entry) bool { return e.Source == source }

// newFake returns a fake mounter and a volume directory whose parents do not
// exist yet.
func newFake(t *testing.T) (*fakemount.Mounter, mount.Request) {
	t.Helper()
	fake := fakemount.New()
	dir := filepath.Join(t.TempDir(), "pods", "u1", "volumes", "vol")
	t.Cleanup(func() {
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	})
	return fake, mount.Request{Source: source, Target: dir, FSType: "nfs"}
}

func mountsAt(t *testing.T, fake *fakemount.Mounter, dir string) (n int) {
	t.Helper()
	all, err := fake.Table().All()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Target == dir {
			n++
		}
	}
	return n
}

func wantGone(t *testing.T, fake *fakemount.Mounter, dir string) {
	t.Helper()
	if n := mountsAt(t, fake, dir); n != 0 {
		t.Errorf("%d mounts are left at %s", n, dir)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("lstat %s = %v, want it gone", dir, err)
	}
}

func TestSetUpAndTearDownAreIdempotent(t *testing.T) {
	fake, request := newFake(t)
	for i, wantMade := range []bool{true, false, false} {
		made, err := podmount.SetUp(t.Context(), fake, request, isShare)
		if err != nil || made != wantMade {
			t.Fatalf("SetUp %d = %v, %v; want %v", i, made, err, wantMade)
		}
		if n := mountsAt(t, fake, request.Target); n != 1 {
			t.Fatalf("%d mounts after SetUp %d", n, i)
		}
	}
	parent, err := os.Stat(filepath.Dir(request.Target))
	if err != nil || parent.Mode().Perm()&^0o750 != 0 {
		t.Errorf("parent has mode %v (%v), want at most 0750", parent.Mode(), err)
	}
	for range 2 {
		if err := podmount.TearDown(t.Context(), fake, request.Target, mount.UnmountOptions{}); err != nil {
			t.Fatal(err)
		}
		wantGone(t, fake, request.Target)
	}
}

func TestSetUpRefusesAnotherMount(t *testing.T) {
	fake, request := newFake(t)
	other := request
	other.Source = "server:/secret"
	if _, err := podmount.SetUp(t.Context(), fake, other, func(mount.Entry) bool { return false }); err != nil {
		t.Fatal(err)
	}
	_, err := podmount.SetUp(t.Context(), fake, request, isShare)
	occupied, ok := errors.AsType[*podmount.OccupiedError](err)
	if !ok || occupied.Found.Source != other.Source || volume.IsUncertain(err) {
		t.Fatalf("SetUp over another share = %v", err)
	}
	for _, word := range []string{source, other.Source, request.Target} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not name %s", err, word)
		}
	}
	if n := mountsAt(t, fake, request.Target); n != 1 {
		t.Errorf("%d mounts, the other one should stay alone", n)
	}
}

func TestFailedMountLeavesNothing(t *testing.T) {
	for name, after := range map[string]bool{"before its effect": false, "after its effect": true} {
		t.Run(name, func(t *testing.T) {
			fake, request := newFake(t)
			fake.Inject(fakemount.Fault{Match: isMount, After: after, Err: unix.EIO})
			_, err := podmount.SetUp(t.Context(), fake, request, isShare)
			if e, ok := errors.AsType[*mount.Error](err); !ok || e.Source != source || !errors.Is(err, unix.EIO) {
				t.Errorf("SetUp = %v, want the *mount.Error", err)
			}
			if volume.IsUncertain(err) {
				t.Errorf("everything was undone, but %v is uncertain", err)
			}
			wantGone(t, fake, request.Target)
		})
	}
}

func isMount(c fakemount.Call) bool   { return c.Op == mount.OpMount }
func isUnmount(c fakemount.Call) bool { return c.Op != mount.OpMount }

func TestFailedCleanUpIsUncertain(t *testing.T) {
	fake, request := newFake(t)
	fake.Inject(
		fakemount.Fault{Match: isMount, After: true, Err: unix.EIO},
		fakemount.Fault{Match: isUnmount, Nth: 1, Err: unix.EBUSY},
	)
	_, err := podmount.SetUp(t.Context(), fake, request, isShare)
	if !errors.Is(err, unix.EIO) || !errors.Is(err, unix.EBUSY) || !volume.IsUncertain(err) {
		t.Fatalf("SetUp = %v, want both errors and uncertain", err)
	}
	if err := podmount.TearDown(t.Context(), fake, request.Target, mount.UnmountOptions{}); err != nil {
		t.Fatal(err)
	}
	wantGone(t, fake, request.Target)
}

func TestHungMountEndsWithItsContext(t *testing.T) {
	for name, after := range map[string]bool{"before its effect": false, "after its effect": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fake, request := newFake(t)
				never := make(chan struct{})
				fake.Inject(fakemount.Fault{Match: isMount, After: after, Release: never})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				start := time.Now()
				_, err := podmount.SetUp(ctx, fake, request, isShare)
				if !errors.Is(err, context.DeadlineExceeded) || !volume.IsUncertain(err) {
					t.Errorf("SetUp = %v, want an uncertain deadline error", err)
				}
				if took := time.Since(start); took != time.Minute {
					t.Errorf("SetUp took %v", took)
				}
				wantGone(t, fake, request.Target)
			})
		})
	}
}

func TestHungCleanUpIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, request := newFake(t)
		never := make(chan struct{})
		remove := fake.Inject(
			fakemount.Fault{Match: isMount, After: true, Err: unix.EIO},
			fakemount.Fault{Match: isUnmount, Release: never},
		)
		start := time.Now()
		_, err := podmount.SetUp(t.Context(), fake, request, isShare)
		if !errors.Is(err, unix.EIO) || !volume.IsUncertain(err) {
			t.Errorf("SetUp = %v", err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("SetUp took %v", took)
		}
		remove()
		if err := podmount.TearDown(t.Context(), fake, request.Target, mount.UnmountOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func TestCancelledContextTouchesNothing(t *testing.T) {
	fake, request := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := podmount.SetUp(ctx, fake, request, isShare); !errors.Is(err, context.Canceled) {
		t.Errorf("SetUp = %v", err)
	}
	wantGone(t, fake, request.Target)
}

func TestTearDownTakesEveryMountOff(t *testing.T) {
	fake, request := newFake(t)
	if _, err := podmount.SetUp(t.Context(), fake, request, isShare); err != nil {
		t.Fatal(err)
	}
	// Two tmpfs that something else put on top.
	tmpfs := mount.Request{Source: "tmpfs", Target: request.Target, FSType: "tmpfs"}
	for range 2 {
		if err := mount.Mount(t.Context(), fake, tmpfs); err != nil {
			t.Fatal(err)
		}
	}
	if err := podmount.TearDown(t.Context(), fake, request.Target, mount.UnmountOptions{}); err != nil {
		t.Fatal(err)
	}
	wantGone(t, fake, request.Target)
}

func TestTearDownNeverDeletes(t *testing.T) {
	fake, request := newFake(t)
	if err := os.MkdirAll(request.Target, 0o750); err != nil {
		t.Fatal(err)
	}
	precious := filepath.Join(request.Target, "precious")
	if err := os.WriteFile(precious, []byte("data"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A failing mount does not take it for its own directory either.
	remove := fake.Inject(fakemount.Fault{Match: isMount, Err: unix.EIO})
	if _, err := podmount.SetUp(t.Context(), fake, request, isShare); !errors.Is(err, unix.EIO) {
		t.Errorf("SetUp = %v", err)
	}
	remove()
	err := podmount.TearDown(t.Context(), fake, request.Target, mount.UnmountOptions{})
	if e, ok := errors.AsType[*podmount.NotEmptyError](err); !ok || e.Dir != request.Target {
		t.Errorf("TearDown = %v, want a *NotEmptyError", err)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
}

func TestTearDownWhileBusy(t *testing.T) {
	fake, request := newFake(t)
	if _, err := podmount.SetUp(t.Context(), fake, request, isShare); err != nil {
		t.Fatal(err)
	}
	remove := fake.Inject(fakemount.Fault{Match: isUnmount, Err: unix.EBUSY})
	if err := podmount.TearDown(t.Context(), fake, request.Target, mount.UnmountOptions{}); !errors.Is(err, unix.EBUSY) {
		t.Errorf("TearDown = %v, want EBUSY", err)
	}
	if n := mountsAt(t, fake, request.Target); n != 1 {
		t.Errorf("%d mounts, want the one that is busy", n)
	}
	remove()
	if err := podmount.TearDown(t.Context(), fake, request.Target, mount.UnmountOptions{}); err != nil {
		t.Fatal(err)
	}
	wantGone(t, fake, request.Target)
}

func TestLazyDetachKeepsTheDirectoryForOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fake, request := newFake(t)
		if _, err := podmount.SetUp(t.Context(), fake, request, isShare); err != nil {
			t.Fatal(err)
		}
		never := make(chan struct{})
		fake.Inject(fakemount.Fault{Match: func(c fakemount.Call) bool { return isUnmount(c) && c.Rung != mount.RungLazy }, Release: never})
		ladder := mount.UnmountOptions{ForceAfter: time.Minute, LazyAfter: 2 * time.Minute}
		err := podmount.TearDown(t.Context(), fake, request.Target, ladder)
		if e, ok := errors.AsType[*lazyunmount.Error](err); !ok || e.Mount.Source != source || !volume.IsUncertain(err) {
			t.Fatalf("TearDown = %v, want a *lazyunmount.Error", err)
		}
		if err := podmount.TearDown(t.Context(), fake, request.Target, ladder); err != nil {
			t.Fatal(err)
		}
		wantGone(t, fake, request.Target)
	})
}

func TestUnmountThatFailsAfterItsEffect(t *testing.T) {
	fake, request := newFake(t)
	if _, err := podmount.SetUp(t.Context(), fake, request, isShare); err != nil {
		t.Fatal(err)
	}
	fake.Inject(fakemount.Fault{Match: isUnmount, Nth: 1, After: true, Err: unix.EIO})
	if err := podmount.TearDown(t.Context(), fake, request.Target, mount.UnmountOptions{}); !errors.Is(err, unix.EIO) {
		t.Errorf("TearDown = %v", err)
	}
	if err := podmount.TearDown(t.Context(), fake, request.Target, mount.UnmountOptions{}); err != nil {
		t.Fatal(err)
	}
	wantGone(t, fake, request.Target)
}

func TestMetricsOfWhatIsNotMounted(t *testing.T) {
	fake, request := newFake(t)
	var meter meter.Meter
	if _, err := podmount.SetUp(t.Context(), fake, request, isShare); err != nil {
		t.Fatal(err)
	}
	if metrics, err := podmount.Metrics(t.Context(), fake, &meter, request.Target); err != nil || metrics.Capacity == nil {
		t.Errorf("Metrics = %+v, %v", metrics, err)
	}
	if err := podmount.UnmountAll(t.Context(), fake, request.Target, mount.UnmountOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := podmount.Metrics(t.Context(), fake, &meter, request.Target); !errors.Is(err, mount.ErrNotMounted) {
		t.Errorf("Metrics = %v", err)
	}
}

func TestMakeDirFollowsNoLink(t *testing.T) {
	base := t.TempDir()
	elsewhere := filepath.Join(base, "elsewhere")
	if err := os.Mkdir(elsewhere, 0o755); err != nil {
		t.Fatal(err)
	}
	link, file := filepath.Join(base, "link"), filepath.Join(base, "file")
	if err := os.Symlink(elsewhere, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, says := range map[string]string{link: "symbolic link", file: "a file"} {
		if _, err := podmount.MakeDir(dir, 0o755); !errors.Is(err, unix.ENOTDIR) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if made, err := podmount.MakeDir(elsewhere, 0o755); made || err != nil {
		t.Errorf("a directory that is there: %v, %v", made, err)
	}
}
