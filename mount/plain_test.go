package mount_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/testenv/mounttest"
)

func TestPlainMounterThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		var entered atomic.Int32
		m := mounttest.Plain{Hang: release, Entered: func() { entered.Add(1) }}
		request := mount.Request{Source: "10.0.0.1:/e", Target: "/plain/hang", FSType: "nfs"}
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
		if err := mount.Mount(t.Context(), mounttest.Plain{}, mount.Request{Target: "/plain/other"}); err != nil {
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
		m := mounttest.Plain{Hang: release, Entered: func() { entered.Add(1) }}
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
	m := mounttest.Plain{Entered: func() { t.Error("called") }}
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
	m := mounttest.Plain{Err: shared}
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
	err := mount.Mount(t.Context(), mounttest.Plain{Err: errors.New("no luck")}, r)
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a secret shows: %v", err)
	}
	if e, ok := errors.AsType[*mount.Error](err); !ok || strings.Join(e.Options, ",") != "ro,<masked>" {
		t.Errorf("options %v", e.Options)
	}
}
