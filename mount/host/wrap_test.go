package host_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"golang.org/x/sys/unix"
	k8smount "k8s.io/mount-utils"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/host"
	"github.com/podvol/podvol/mount/internal/mounttable"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/testenv/mounttest"
	"github.com/podvol/podvol/util/testenv/nstest"
	"github.com/podvol/podvol/util/testenv/testtool"
)

// hangsAt hangs for one target only.
type hangsAt struct {
	mounttest.Plain
	target string
}

func (h hangsAt) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	if target != h.target {
		return nil
	}
	return h.Plain.MountSensitive(source, target, fstype, options, sensitive)
}

func TestPlainMounterThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var entered atomic.Int32
		request := mount.Request{Source: "10.0.0.1:/e", Target: "/plain/hang", FSType: "nfs"}
		m := host.Wrap(hangsAt{mounttest.Plain{Hang: release, Entered: func() { entered.Add(1) }}, request.Target}, nil)
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			err := mount.Mount(ctx, m, request)
			cancel()
			if e, ok := errors.AsType[*mount.Error](err); !ok || !e.Uncertain || !errors.Is(err, mount.ErrTimedOut) {
				t.Fatalf("err = %v", err)
			}
			if took := time.Since(start); took != time.Second {
				t.Errorf("took %v", took)
			}
		}
		// The unmount waits for the mount that hangs on the same target …
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		rung, err := mount.Unmount(ctx, m, request.Target, mount.UnmountOptions{})
		if e, ok := errors.AsType[*mount.Error](err); !ok || !e.Uncertain || rung != mount.RungNormal {
			t.Errorf("rung %v, err = %v", rung, err)
		}
		if n := entered.Load(); n != 1 {
			t.Errorf("%d calls hang for one target", n)
		}
		// … and no other target does.
		if err := mount.Mount(t.Context(), m, mount.Request{Target: "/plain/other"}); err != nil {
			t.Error(err)
		}
		close(release)
		synctest.Wait()
		if err := mount.Mount(t.Context(), m, request); err != nil {
			t.Errorf("after the release: %v", err)
		}
	})
}

func TestPlainCallsKnowATargetByEverySpelling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var entered atomic.Int32
		m := host.Wrap(mounttest.Plain{Hang: release, Entered: func() { entered.Add(1) }}, nil)
		for _, target := range []string{"/plain/spelt", "/plain/spelt/", "/plain//spelt", "/plain/./spelt"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			err := mount.Mount(ctx, m, mount.Request{Source: "10.0.0.1:/e", Target: target, FSType: "nfs"})
			if !errors.Is(err, mount.ErrTimedOut) {
				t.Errorf("mount on %s: %v", target, err)
			}
			cancel()
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			if _, err := mount.Unmount(ctx, m, target, mount.UnmountOptions{}); !errors.Is(err, mount.ErrTimedOut) {
				t.Errorf("unmount of %s: %v", target, err)
			}
			cancel()
		}
		if n := entered.Load(); n != 1 {
			t.Errorf("%d calls hang for one target", n)
		}
		close(release)
		synctest.Wait()
	})
}

func TestPlainMounterIsNotCalledWithoutTime(t *testing.T) {
	m := host.Wrap(mounttest.Plain{Entered: func() { t.Error("called") }}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := mount.Mount(ctx, m, mount.Request{Source: "10.0.0.1:/e", Target: "/plain/ended", FSType: "nfs"})
	if e, ok := errors.AsType[*mount.Error](err); !ok || e.Uncertain || !errors.Is(err, mount.ErrCanceled) {
		t.Errorf("mount: %v", err)
	}
	rung, err := mount.Unmount(ctx, m, "/plain/ended", mount.UnmountOptions{})
	if e, ok := errors.AsType[*mount.Error](err); !ok || e.Uncertain || rung != mount.RungNone || !errors.Is(err, mount.ErrCanceled) {
		t.Errorf("unmount: rung %v, %v", rung, err)
	}
}

// An *Error of a mounter may be one that it gives to everybody.
func TestErrorOfAPlainMounterStaysAsItIs(t *testing.T) {
	shared := &mount.Error{Op: mount.OpMount, Cause: mount.ErrBadOption, Also: []mount.Cause{mount.ErrBusy}, Err: errors.New("Unknown parameter 'sise'")}
	before := *shared
	m := host.Wrap(mounttest.Plain{Err: shared}, nil)
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			err := mount.Mount(t.Context(), m, mount.Request{Target: fmt.Sprint("/plain/", i), FSType: "tmpfs", Options: []string{"sise=1"}})
			e, ok := errors.AsType[*mount.Error](err)
			if !ok || e != shared || e.Cause != mount.ErrBadOption || !errors.Is(err, mount.ErrBusy) {
				t.Errorf("err = %v", err)
			}
		})
	}
	all.Wait()
	if diff := cmp.Diff(before, *shared, cmpopts.EquateErrors()); diff != "" {
		t.Errorf("the mounter's error was changed (-before +after):\n%s", diff)
	}
}

func TestRequestStringMasks(t *testing.T) {
	r := mount.Request{Source: "//srv/share", Target: "/t", FSType: "cifs", Options: []string{"ro"}, Sensitive: []string{"password=hunter2"}}
	if got, want := r.String(), "mount -t cifs -o ro,<masked> //srv/share /t"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	err := mount.Mount(t.Context(), host.Wrap(mounttest.Plain{Err: errors.New("no luck")}, nil), r)
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret shows: %v", err)
	}
	if e, ok := errors.AsType[*mount.Error](err); !ok || strings.Join(e.Options, ",") != "ro,<masked>" {
		t.Errorf("options %v", e.Options)
	}
}

// plainest is a mounter that can do no more than mount-utils asks for.
type plainest struct{ mount.Interface }

// withContexts has contexts, and no table.
type withContexts struct{ mount.Interface }

func (withContexts) MountContext(context.Context, mount.Request) error { return nil }

func (withContexts) UnmountContext(context.Context, string, mount.UnmountOptions) (mount.Rung, error) {
	return mount.RungLazy, nil
}

// withTable has a table, and no contexts.
type withTable struct {
	mounttest.Plain
	table mount.Table
}

func (w withTable) Table() mount.Table { return w.table }

func TestWrapGivesOnlyWhatIsMissing(t *testing.T) {
	fake, real := fakemount.New(), host.New(host.Config{})
	for _, m := range []mount.ContextMounter{fake, real} {
		if host.Wrap(m, nil) != m {
			t.Errorf("%T has all, and was wrapped", m)
		}
	}
	if host.Wrap(nil, nil) != nil {
		t.Error("no mounter was wrapped")
	}
	for name, m := range map[string]mount.Interface{"plain": plainest{}, "with contexts": withContexts{}, "with a table": &withTable{table: fake.Table()}} {
		w := host.Wrap(m, nil)
		if host.Wrap(w, nil) != w {
			t.Errorf("%s: wrapped twice", name)
		}
		if w.(interface{ Unwrap() mount.Interface }).Unwrap() != m {
			t.Errorf("%s: Unwrap returns another mounter", name)
		}
		if _, ok := w.(k8smount.MounterForceUnmounter); !ok {
			t.Errorf("%s: it cannot be forced", name)
		}
		if own := table.Of(w) == fake.Table(); own != (name == "with a table") {
			t.Errorf("%s: its own table: %v", name, own)
		}
	}
	if rung, err := host.Wrap(withContexts{}, nil).UnmountContext(t.Context(), "/t", mount.UnmountOptions{}); rung != mount.RungLazy || err != nil {
		t.Errorf("its own unmount is not used: %v, %v", rung, err)
	}
}

// A mounter that was not wrapped is refused, with the call that is missing.
func TestUnwrappedMounterIsRefused(t *testing.T) {
	m := mounttest.Plain{Entered: func() { t.Error("called") }}
	_, unmountErr := mount.Unmount(t.Context(), m, "/t", mount.UnmountOptions{})
	for _, err := range []error{mount.Mount(t.Context(), m, mount.Request{Target: "/t", FSType: "tmpfs"}), unmountErr} {
		e, ok := errors.AsType[*mount.Error](err)
		if !ok || e.Uncertain || !errors.Is(err, mount.ErrUnwrapped) || !strings.Contains(e.Advice(), "host.Wrap") {
			t.Errorf("err = %v", err)
		}
	}
}

// The mounts of a mounter with a table of its own may be none of this process's: force
// and lazy would hit others.
func TestNoLadderWithAnotherTable(t *testing.T) {
	fake := fakemount.New()
	m := host.Wrap(&withTable{mounttest.Plain{Err: errors.New("umount: /t: target is busy.")}, fake.Table()}, nil)
	rung, err := m.UnmountContext(t.Context(), "/t", mount.UnmountOptions{ForceAfter: 1, LazyAfter: 2})
	if rung != mount.RungNormal || !errors.Is(err, mount.ErrBusy) {
		t.Errorf("rung %v, %v", rung, err)
	}
}

// TestWrapReadsTheTableOnce counts how often the mount table is read for many questions
// of several callers, which know only the mounter.
func TestWrapReadsTheTableOnce(t *testing.T) {
	m := host.Wrap(plainest{}, nil)
	first := table.Of(m)
	for range 50 {
		mounts := table.Of(m)
		if mounts != first {
			t.Fatal("each caller gets a table of its own")
		}
		for _, path := range []string{"/", "/no/such/place"} {
			if _, _, err := mounts.At(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	loads, signals := first.(*mounttable.Table).Reads()
	// Others may mount meanwhile: each signal lets it be read once more.
	if loads == 0 || loads > 1+signals {
		t.Errorf("the table was read %d times for 100 questions, and has changed %d times", loads, signals)
	}
}

// Mount-utils' own mounter, wrapped, unmounts as ours does: a busy mount has its holders,
// and is detached when its time has come.
func TestWrappedMountUtils(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		testtool.Need(t, "mount")
		m := host.Wrap(k8smount.New(""), nil)
		target := t.TempDir()
		if err := mount.Mount(t.Context(), m, mounttest.Tmpfs(target, "size=64k", "nosuid")); err != nil {
			t.Fatal(err)
		}
		if e, mounted, err := table.Of(m).At(target); err != nil || !mounted || !slices.Contains(e.Options, "nosuid") {
			t.Fatalf("%+v, %v, %v", e, mounted, err)
		}
		file, err := os.Create(target + "/file")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		rung, err := mount.Unmount(t.Context(), m, target, mount.UnmountOptions{Holders: true})
		if e, ok := errors.AsType[*mount.Error](err); !ok || rung != mount.RungNormal || !errors.Is(err, mount.ErrBusy) || len(e.Holders) != 1 || e.Holders[0].PID != os.Getpid() {
			t.Errorf("rung %v, %v, held by %+v", rung, err, e.Holders)
		}
		if rung, err := mount.Unmount(t.Context(), m, target, mount.UnmountOptions{LazyAfter: 10 * time.Millisecond}); err != nil || rung != mount.RungLazy {
			t.Errorf("lazily: rung %v, %v", rung, err)
		}
		if _, mounted := mounttest.EntryAt(t, target); mounted {
			t.Error("it is still mounted")
		}
	})
}

// The lazy rung takes a mount off whose own unmount hangs. The mount beneath stays.
func TestWrappedMounterWhoseUnmountHangs(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		target := t.TempDir()
		mounttest.Mount(t, mounttest.Tmpfs(target, "size=64k"))
		mounttest.Mount(t, mounttest.Tmpfs(target, "size=128k"))
		release, entered := make(chan struct{}), make(chan struct{})
		var once sync.Once
		m := host.Wrap(mounttest.Plain{Hang: release, Entered: func() { once.Do(func() { close(entered) }) }}, nil)
		rung, err := mount.Unmount(t.Context(), m, target, mount.UnmountOptions{LazyAfter: 50 * time.Millisecond})
		if err != nil || rung != mount.RungLazy {
			t.Errorf("rung %v, %v", rung, err)
		}
		<-entered
		close(release)
		e, mounted := mounttest.EntryAt(t, target)
		if size, _ := e.Option("size"); !mounted || size != "64k" {
			t.Errorf("%+v is mounted: %v", e, mounted)
		}
		testtool.Must(t, unix.Unmount(target, 0))
	})
}
