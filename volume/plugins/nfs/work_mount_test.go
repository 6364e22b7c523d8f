package nfs

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/lazyunmount"
)

func hostWith(t *testing.T, m mount.Interface) *volume.Host {
	t.Helper()
	return &volume.Host{RootDir: t.TempDir(), NodeName: "n", Mounter: m}
}

// newWorker returns a plugin on a fake that serves 10.0.0.1:/export from the
// returned directory.
func newWorker(t *testing.T, config Config) (*plugin, *fakemount.Mounter, string) {
	t.Helper()
	fake := fakemount.New()
	t.Cleanup(func() {
		if err := fake.Close(); err != nil {
			t.Error(err)
		}
	})
	p := New(config).(*plugin)
	if err := p.Init(hostWith(t, fake)); err != nil {
		t.Fatal(err)
	}
	served := t.TempDir()
	fake.Serve("10.0.0.1:/export", served)
	return p, fake, served
}

var workExport = export{"10.0.0.1", "/export"}

func mkdirIn(name string) func(context.Context, *os.File) error {
	return func(_ context.Context, root *os.File) error { return unix.Mkdirat(int(root.Fd()), name, 0o750) }
}

func workIsGone(t *testing.T, p *plugin, fake *fakemount.Mounter) {
	t.Helper()
	left, err := os.ReadDir(p.GetWorkDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) || len(left) > 0 {
		t.Errorf("left below %s: %v, %v", p.GetWorkDir(), left, err)
	}
	if all, err := fake.Table().All(); err != nil || len(all) != 1 {
		t.Errorf("the table has %+v, %v", all, err)
	}
}

func TestWithExportGivesTheRootOfTheExport(t *testing.T) {
	p, fake, served := newWorker(t, Config{})
	failure := errors.New("of f")
	for _, want := range []error{nil, failure} {
		err := p.withExport(t.Context(), workExport, []string{"vers=4.1", "nosuid"}, "job", func(ctx context.Context, root *os.File) error {
			e, mounted, err := fake.Table().At(filepath.Join(p.GetWorkDir(), "job"))
			if err != nil || !mounted || e.Source != "10.0.0.1:/export" {
				t.Errorf("mounted is %+v, %v", e, err)
			}
			for _, o := range []string{"nosuid", "nodev", "noexec"} {
				if !slices.Contains(e.Options, o) {
					t.Errorf("without %s: %q", o, e.Options)
				}
			}
			if v, _ := e.Option("vers"); v != "4.1" {
				t.Errorf("vers is %q", v)
			}
			return errors.Join(want, os.WriteFile(filepath.Join(served, "seen"), nil, 0o600), func() error {
				_, err := root.Readdirnames(1)
				return err
			}())
		})
		if !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("err = %v, want %v", err, want)
		}
		workIsGone(t, p, fake)
	}
}

// The directories above the plugin's own are other plugins' too: one that makes
// its own there must not find them removed in the same moment.
func TestWithExportLeavesSharedDirectories(t *testing.T) {
	p, fake, _ := newWorker(t, Config{})
	for _, e := range []export{workExport, {"10.0.0.1", "/export/nothing"}} {
		err := p.withExport(t.Context(), e, nil, "job", mkdirIn("made"))
		if (err == nil) != (e == workExport) {
			t.Error(err)
		}
		workIsGone(t, p, fake)
		if _, err := os.Lstat(p.GetWorkDir()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the work directory: %v", err)
		}
		if _, err := os.Lstat(p.Host.GetPluginDir(PluginName)); err != nil {
			t.Error(err)
		}
	}
}

func TestWithExportSaysWhyItCannotMount(t *testing.T) {
	p, fake, _ := newWorker(t, Config{})
	err := p.withExport(t.Context(), export{"10.0.0.1", "/export/nothing"}, nil, "job", func(context.Context, *os.File) error {
		t.Error("f was called")
		return nil
	})
	if !errors.Is(err, mount.ErrNoSuchExport) {
		t.Errorf("err = %v", err)
	}
	for _, name := range []string{"", "..", "a/b", "a\nb"} {
		if err := p.withExport(t.Context(), workExport, nil, name, mkdirIn("x")); !errors.As(err, new(*volume.InvalidSpecError)) {
			t.Errorf("name %q: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.withExport(ended, workExport, nil, "job", mkdirIn("x")); !errors.Is(err, context.Canceled) || volume.IsUncertain(err) {
		t.Errorf("err = %v", err)
	}
	workIsGone(t, p, fake)
}

// What a crash left under the name is unmounted first, whatever it is, and what
// is not empty stays.
func TestWithExportTakesOverWhatACrashLeft(t *testing.T) {
	p, fake, served := newWorker(t, Config{})
	dir := filepath.Join(p.GetWorkDir(), "job")
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"10.0.0.1:/export", "10.0.0.2:/other"} {
		if err := fake.MountContext(t.Context(), mount.Request{Source: source, Target: dir, FSType: "nfs"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.withExport(t.Context(), workExport, nil, "job", mkdirIn("made")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(served, "made")); err != nil {
		t.Error(err)
	}
	workIsGone(t, p, fake)
	file := filepath.Join(dir, "file")
	if err := errors.Join(os.MkdirAll(dir, 0o750), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := p.withExport(t.Context(), workExport, nil, "job", mkdirIn("again")); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("err = %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// f never sees anything but the export, whatever is mounted there meanwhile.
func TestWithExportShowsNothingElse(t *testing.T) {
	p, fake, _ := newWorker(t, Config{})
	request := mount.Request{Source: "10.0.0.2:/other", Target: filepath.Join(p.GetWorkDir(), "job"), FSType: "nfs"}
	remove := fake.Inject(fakemount.Fault{
		Match: func(c fakemount.Call) bool { return c.Op == mount.OpMount && c.Source == "10.0.0.1:/export" },
		After: true,
		Hook: func() {
			if err := fake.MountContext(t.Context(), request); err != nil {
				t.Error(err)
			}
		},
	})
	defer remove()
	err := p.withExport(t.Context(), workExport, nil, "job", func(context.Context, *os.File) error {
		t.Error("f was called")
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "10.0.0.2:/other") {
		t.Errorf("err = %v", err)
	}
	workIsGone(t, p, fake)
}

// Work that hangs on a dead server costs the caller seconds after its context,
// and one goroutine, however often it is tried again.
func TestWithExportDoesNotWaitForADeadServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, fake, _ := newWorker(t, Config{})
		release := make(chan struct{})
		var calls atomic.Int32
		hang := func(context.Context, *os.File) error { calls.Add(1); <-release; return nil }
		for try := range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			begun := time.Now()
			err := p.withExport(ctx, workExport, nil, "job", hang)
			cancel()
			abandoned, ok := errors.AsType[*blockingcall.AbandonedError](err)
			if !ok || !errors.Is(err, context.DeadlineExceeded) || abandoned.Earlier != (try > 0) {
				t.Fatalf("try %d: err = %v", try, err)
			}
			if took := time.Since(begun); took > time.Minute+workGrace {
				t.Errorf("try %d took %v", try, took)
			}
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("f was called %d times", n)
		}
		if err := p.withExport(t.Context(), workExport, nil, "other", mkdirIn("made")); err != nil {
			t.Errorf("another name waits for the hung one: %v", err)
		}
		workIsGone(t, p, fake) // although f runs
		close(release)
		synctest.Wait()
		if err := p.withExport(t.Context(), workExport, nil, "job", mkdirIn("again")); err != nil {
			t.Errorf("the name does not recover: %v", err)
		}
		workIsGone(t, p, fake)
	})
}

// A mount that will not go is forced, then detached, by the node's own times.
func TestWorkMountsGoByTheLadder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, fake, _ := newWorker(t, Config{ForceAfter: 10 * time.Second, LazyAfter: 20 * time.Second})
		remove := fake.Inject(fakemount.Fault{
			Match: func(c fakemount.Call) bool { return c.Op == mount.OpUnmount || c.Op == fakemount.OpUnmountForce },
			Err:   unix.EBUSY,
		})
		begun := time.Now()
		err := p.withExport(t.Context(), workExport, nil, "job", mkdirIn("made"))
		if _, detached := errors.AsType[*lazyunmount.Error](err); !detached {
			t.Errorf("err = %v", err)
		}
		if took := time.Since(begun); took < 20*time.Second || took > 25*time.Second {
			t.Errorf("it took %v", took)
		}
		remove()
		workIsGone(t, p, fake)
	})
}

func TestLadderOfTheConfig(t *testing.T) {
	for _, test := range []struct{ config, want time.Duration }{{0, defaultLazyAfter}, {time.Hour, time.Hour}, {-1, 0}} {
		p := New(Config{LazyAfter: test.config}).(*plugin)
		if got := p.ladder(); got.LazyAfter != test.want || got.ForceAfter != defaultForceAfter {
			t.Errorf("of %v: %+v", test.config, got)
		}
	}
}
