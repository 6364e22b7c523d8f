package nfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/util/blockingcall"
	"github.com/podvol/podvol/volume"
)

var aServer = endpoint{server: "10.0.0.1"}

// failed is a mount that failed for a reason.
func failed(cause mount.Cause, err error) error {
	return &mount.Error{Op: mount.OpMount, Source: "10.0.0.1:/nfs", Target: "/pods/another/secret", Cause: cause, Err: err}
}

var timedOut = failed(mount.ErrTimedOut, unix.EHOSTUNREACH)

func returns(err error) func() error { return func() error { return err } }

// open has a new breaker refuse aServer.
func open(t *testing.T, config BreakerConfig) *breaker {
	t.Helper()
	b := newBreaker(config)
	for range b.config.Failures {
		if err := b.do(t.Context(), aServer, returns(timedOut)); !errors.Is(err, unix.EHOSTUNREACH) {
			t.Fatalf("err = %v", err)
		}
	}
	if b.health(aServer).Answers {
		t.Fatal("the breaker did not open")
	}
	return b
}

// refuses reports whether a mount is refused at once.
func refuses(t *testing.T, b *breaker, server endpoint) bool {
	t.Helper()
	start, asked := time.Now(), false
	err := b.do(t.Context(), server, func() error {
		asked = true
		return failed(mount.ErrBusy, unix.EBUSY) // which says nothing of the server
	})
	_, down := errors.AsType[*ServerDownError](err)
	if down == asked || time.Since(start) > 0 {
		t.Errorf("err = %v after %v, and asked is %v", err, time.Since(start), asked)
	}
	return down
}

func TestBreakerRefusesWhatHasNoAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		b := newBreaker(BreakerConfig{})
		for n := range 3 {
			if refuses(t, b, aServer) {
				t.Errorf("refused after %d mounts without an answer", n)
			}
			time.Sleep(time.Minute)
			_ = b.do(t.Context(), aServer, returns(timedOut))
		}
		err := b.do(t.Context(), aServer, func() error { t.Error("the server was asked"); return nil })
		down, ok := errors.AsType[*ServerDownError](err)
		if !ok || volume.IsUncertain(err) || !errors.Is(err, mount.ErrTimedOut) {
			t.Fatalf("err = %v", err)
		}
		if down.Server != "10.0.0.1" || down.Failures != 3 || !down.Since.Equal(start.Add(time.Minute)) ||
			!down.Next.Equal(time.Now().Add(5*time.Second)) || down.Last != error(unix.EHOSTUNREACH) || down.Cause != mount.ErrTimedOut {
			t.Errorf("down = %+v", down)
		}
		if at, ok := volume.RetryAt(err); !ok || !at.Equal(down.Next) {
			t.Errorf("RetryAt is %v, %v", at, ok)
		}
		for _, part := range []string{"10.0.0.1", "firewall", down.Since.UTC().Format(time.RFC3339)} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q does not say %q", err, part)
			}
		}
		if strings.Contains(err.Error(), "another") {
			t.Errorf("%q tells of another pod", err)
		}
		if refuses(t, b, endpoint{server: "10.0.0.2"}) {
			t.Error("another server is refused too")
		}
		time.Sleep(time.Until(down.Next))
		_ = b.do(t.Context(), aServer, returns(failed(mount.ErrTimedOut, errors.New("in other words"))))
		if again := b.do(t.Context(), aServer, returns(nil)); again == nil || again.Error() != err.Error() {
			t.Errorf("after another try it says %q, before: %q", again, err)
		}
	})
}

func TestBreakerPausesTwiceAsLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, BreakerConfig{})
		for _, pause := range []time.Duration{5, 10, 20, 40, 60, 60} {
			h := b.health(aServer)
			if got := time.Until(h.RetryAt); got != pause*time.Second {
				t.Errorf("the pause is %v, want %ds", got, pause)
			}
			time.Sleep(time.Until(h.RetryAt) - time.Nanosecond)
			if !refuses(t, b, aServer) {
				t.Error("it is tried too early")
			}
			time.Sleep(time.Nanosecond)
			err := b.do(t.Context(), aServer, returns(timedOut))
			if at, ok := volume.RetryAt(err); !ok || !at.Equal(b.health(aServer).RetryAt) || !errors.Is(err, unix.EHOSTUNREACH) {
				t.Errorf("the mount that tried it: %v", err)
			}
		}
		time.Sleep(time.Minute)
		if err := b.do(t.Context(), aServer, returns(nil)); err != nil {
			t.Error(err)
		}
		if h := b.health(aServer); !h.Answers || h.Failures != 0 || h.Err != nil || refuses(t, b, aServer) || len(b.servers) != 0 {
			t.Errorf("after an answer: %+v, and %d servers are in the book", h, len(b.servers))
		}
	})
}

// While one mount tries the server, all others wait for it, however many come.
func TestBreakerTriesWithOneMount(t *testing.T) {
	for name, back := range map[string]bool{"the server is back": true, "it is not": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := open(t, BreakerConfig{})
				time.Sleep(5 * time.Second)
				const many = 50
				release := make(chan error)
				var mu sync.Mutex
				asked, refused := 0, 0
				var wait sync.WaitGroup
				for range many {
					wait.Go(func() {
						err := b.do(t.Context(), aServer, func() error {
							mu.Lock()
							asked++
							mu.Unlock()
							return <-release
						})
						mu.Lock()
						defer mu.Unlock()
						if _, down := errors.AsType[*ServerDownError](err); down {
							refused++
						}
					})
				}
				synctest.Wait()
				if asked != 1 {
					t.Errorf("%d mounts try the server", asked)
				}
				time.Sleep(7 * time.Second)
				if back {
					close(release)
				} else {
					release <- timedOut
				}
				start := time.Now()
				wait.Wait()
				if time.Since(start) != 0 {
					t.Errorf("the others waited another %v", time.Since(start))
				}
				if want := map[bool][2]int{true: {many, 0}, false: {1, many - 1}}[back]; [2]int{asked, refused} != want {
					t.Errorf("%d asked, %d were refused; want %v", asked, refused, want)
				}
			})
		})
	}
}

// What tries the server may hang for ever, at the cost of one mount a pause.
func TestBreakerDoesNotWaitForAHungTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, BreakerConfig{})
		never := make(chan error)
		var hung sync.WaitGroup
		results := make(chan error, 10)
		for _, pause := range []time.Duration{10, 20, 40} {
			time.Sleep(time.Until(b.health(aServer).RetryAt))
			hung.Go(func() { results <- b.do(context.Background(), aServer, func() error { return <-never }) })
			synctest.Wait()
			start := time.Now()
			err := b.do(t.Context(), aServer, returns(nil))
			down, ok := errors.AsType[*ServerDownError](err)
			if !ok || time.Since(start) != 15*time.Second || !down.Next.Equal(time.Now().Add(pause*time.Second)) {
				t.Errorf("err = %v after %v", err, time.Since(start))
			}
		}
		failures := b.health(aServer).Failures
		never <- timedOut // counted already
		synctest.Wait()
		if h := b.health(aServer); h.Failures != failures || !errors.Is(h.Err, unix.EHOSTUNREACH) || !errors.Is(h.Err, mount.ErrTimedOut) {
			t.Errorf("after the late end: %+v", h)
		}
		if at, ok := volume.RetryAt(<-results); !ok || !at.Equal(b.health(aServer).RetryAt) {
			t.Errorf("its own error says to try again at %v, %v", at, ok)
		}
		never <- nil // late, but an answer
		synctest.Wait()
		if refuses(t, b, aServer) {
			t.Error("an answer does not end the trouble")
		}
		never <- timedOut
		hung.Wait()
		if h := b.health(aServer); !h.Answers || h.Failures != 0 || len(b.servers) != 0 {
			t.Errorf("what was counted before counts again: %+v", h)
		}
	})
}

func TestBreakerCancelledTrialDecidesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, BreakerConfig{})
		time.Sleep(5 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		var wait sync.WaitGroup
		wait.Go(func() {
			err := b.do(ctx, aServer, func() error { <-ctx.Done(); return failed(mount.ErrCanceled, ctx.Err()) })
			if _, ok := volume.RetryAt(err); ok || !errors.Is(err, context.Canceled) {
				t.Errorf("the cancelled mount: %v", err)
			}
		})
		synctest.Wait()
		tried := make(chan bool, 2)
		for range 2 {
			wait.Go(func() { _ = b.do(t.Context(), aServer, func() error { tried <- true; return nil }) })
		}
		// Somebody else's patience is over first.
		short, end := context.WithTimeout(t.Context(), time.Second)
		defer end()
		err := b.do(short, aServer, returns(nil))
		if _, down := errors.AsType[*ServerDownError](err); !down || !errors.Is(err, context.DeadlineExceeded) || volume.IsUncertain(err) {
			t.Errorf("err = %v", err)
		}
		if len(tried) != 0 {
			t.Error("two mounts try the server")
		}
		failures := b.health(aServer).Failures
		cancel()
		wait.Wait()
		if len(tried) != 2 || failures != 3 {
			t.Errorf("%d tried, %d failures", len(tried), failures)
		}
	})
}

func TestBreakerCountsMountsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBreaker(BreakerConfig{})
		release := make(chan error)
		var hung sync.WaitGroup
		for range 4 {
			hung.Go(func() { _ = b.do(t.Context(), aServer, func() error { return <-release }) })
		}
		synctest.Wait()
		time.Sleep(15*time.Second - 1)
		if refuses(t, b, aServer) {
			t.Error("refused too early")
		}
		time.Sleep(time.Second)
		if !refuses(t, b, aServer) {
			t.Error("a new mount would hang too")
		}
		if h := b.health(aServer); h.Failures != 4 || h.Answers || time.Until(h.RetryAt) != 4*time.Second+1 {
			t.Errorf("health %+v", h)
		}
		close(release) // slow, but it works
		hung.Wait()
		if refuses(t, b, aServer) {
			t.Error("refused although all mounts have succeeded")
		}
	})
}

func TestBreakerJudges(t *testing.T) {
	unstarted := &blockingcall.AbandonedError{Err: context.DeadlineExceeded}
	for _, tc := range []struct {
		err  error
		took time.Duration
		want verdict
	}{
		{failed(mount.ErrAccessDenied, unix.EACCES), 0, answered},
		{failed(mount.ErrNoSuchExport, unix.ENOENT), 0, answered},
		{failed(mount.ErrVersionUnsupported, unix.EPROTONOSUPPORT), 0, answered},
		{failed(mount.ErrStaleHandle, unix.ESTALE), 0, answered},
		{failed(mount.ErrConnectionRefused, unix.ECONNREFUSED), 0, refused},
		{failed(mount.ErrNameResolution, errors.New("no such host")), 0, refused},
		{timedOut, 0, silent},
		{failed(mount.ErrTimedOut, nil), 0, silent},
		{failed(mount.ErrTimedOut, &blockingcall.AbandonedError{Started: true, Err: context.DeadlineExceeded}), time.Minute, silent},
		{failed(mount.ErrTimedOut, &blockingcall.AbandonedError{Earlier: true, Err: context.DeadlineExceeded}), time.Minute, silent},
		{failed(mount.ErrTimedOut, unstarted), time.Minute, saysNothing},
		{failed(mount.ErrTimedOut, context.DeadlineExceeded), leastSilence, silent},
		{failed(mount.ErrTimedOut, context.DeadlineExceeded), leastSilence - 1, saysNothing},
		{failed(mount.ErrTimedOut, os.ErrDeadlineExceeded), time.Second, saysNothing},
		{failed(mount.ErrCanceled, context.Canceled), time.Hour, saysNothing},
		{failed(mount.ErrHelperMissing, nil), 0, saysNothing},
		{failed(mount.ErrNotPermitted, unix.EPERM), 0, saysNothing},
		{errors.New("no directory"), time.Hour, saysNothing},
	} {
		if got := judge(fmt.Errorf("of a volume: %w", tc.err), tc.took); got != tc.want {
			t.Errorf("%v after %v: %v, want %v", tc.err, tc.took, got, tc.want)
		}
	}
	if judge(nil, 0) != answered {
		t.Error("success is no answer")
	}
}

// A server that is refused a connection costs no time, and is not back either.
func TestBreakerRefusedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		noServer := failed(mount.ErrConnectionRefused, unix.ECONNREFUSED)
		b := newBreaker(BreakerConfig{})
		for range 10 {
			if err := b.do(t.Context(), aServer, returns(noServer)); err != noServer {
				t.Fatalf("err = %v", err)
			}
		}
		b = open(t, BreakerConfig{})
		time.Sleep(5 * time.Second)
		if err := b.do(t.Context(), aServer, returns(noServer)); !errors.Is(err, mount.ErrConnectionRefused) {
			t.Error(err)
		}
		err := b.do(t.Context(), aServer, returns(nil))
		if _, down := errors.AsType[*ServerDownError](err); !down || !errors.Is(err, mount.ErrConnectionRefused) || !errors.Is(err, mount.ErrTimedOut) ||
			!strings.Contains(err.Error(), mount.ErrConnectionRefused.Error()) {
			t.Errorf("err = %v", err)
		}
	})
}

func TestBreakerForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, BreakerConfig{})
		for n := range 100 {
			_ = b.do(t.Context(), endpoint{server: fmt.Sprint("10.1.0.", n)}, returns(timedOut))
		}
		if len(b.servers) != 101 {
			t.Fatalf("%d servers", len(b.servers))
		}
		time.Sleep(remembers*time.Minute - 1)
		if !b.health(aServer).RetryAt.Before(time.Now()) || len(b.servers) != 101 {
			t.Error("forgotten too early")
		}
		time.Sleep(time.Nanosecond)
		_ = b.do(t.Context(), endpoint{server: "10.2.0.1"}, returns(timedOut))
		if len(b.servers) != 1 {
			t.Errorf("%d servers", len(b.servers))
		}
		if h := b.health(aServer); !h.Answers || h.Failures != 0 {
			t.Errorf("health %+v", h)
		}
		time.Sleep(remembers * time.Minute)
		if h := b.health(endpoint{server: "10.2.0.1"}); h.Failures != 0 || len(b.servers) != 0 {
			t.Errorf("health %+v of %d servers", h, len(b.servers))
		}
	})
}

func TestBreakerThatNeverOpens(t *testing.T) {
	b := newBreaker(BreakerConfig{Failures: -1})
	for range 10 {
		if err := b.do(t.Context(), aServer, returns(timedOut)); err != timedOut {
			t.Errorf("err = %v", err)
		}
	}
	if !b.health(aServer).Answers || len(b.servers) != 0 {
		t.Error("it keeps a book that nobody reads")
	}
}

func TestEndpoints(t *testing.T) {
	same := [][]string{nil, {"vers=4.2"}, {"hard", "nconnect=4", "proto=tcp"}, {"tcp,nfsvers=4"}}
	for _, options := range same {
		for _, server := range []string{"FD00:0::1", "fd00::1"} {
			if got := endpointOf(export{server, "/x"}, options); got != (endpoint{server: "fd00::1"}) {
				t.Errorf("%s %q: %v", server, options, got)
			}
		}
	}
	for want, options := range map[string][]string{
		"vers=3": {"v3", "hard"}, "vers=3 ": {"nfsvers=3,ro"}, "port=2050,vers=3": {"vers=3", "port=2050", "port=2050"},
		"proto=rdma": {"proto=rdma"}, "addr=10.0.0.9": {"addr=10.0.0.9"}, "mountport=1": {"mountport=1"},
	} {
		if got := endpointOf(export{"NAS", "/x"}, options); got.server != "nas" || got.options != strings.TrimSpace(want) {
			t.Errorf("%q: %v", options, got)
		}
	}
	if got := (endpoint{"nas", "vers=3"}).String(); got != "nas (vers=3)" {
		t.Error(got)
	}
}

func BenchmarkBreaker(b *testing.B) {
	succeed := returns(nil)
	b.Run("without", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = succeed()
		}
	})
	b.Run("healthy", func(b *testing.B) {
		book := newBreaker(BreakerConfig{})
		b.ReportAllocs()
		for b.Loop() {
			if err := book.do(b.Context(), aServer, succeed); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("refused", func(b *testing.B) {
		book := newBreaker(BreakerConfig{FirstPause: time.Hour})
		for range 3 {
			_ = book.do(b.Context(), aServer, returns(timedOut))
		}
		b.ReportAllocs()
		for b.Loop() {
			if book.do(b.Context(), aServer, succeed) == nil {
				b.Fatal("not refused")
			}
		}
	})
}
