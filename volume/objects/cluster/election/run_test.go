package election_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/objects/cluster/election"
)

func TestTheLeaseIsReleasedOnlyAfterTheWorkHasEnded(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		first := h.replica("first")
		first.linger = 20 * time.Second
		first.start()
		time.Sleep(3 * time.Second)
		second := h.start("second")
		h.wantLeader("first")
		first.cancel()
		for range 19 {
			time.Sleep(time.Second)
			h.wantLeader("first")
			if first.health.State().Leading || time.Since(first.health.State().Renewed) > 3*time.Second {
				t.Fatalf("while it ends: %+v", first.health.State())
			}
		}
		time.Sleep(6 * time.Second)
		h.wantLeader("second") // without waiting for the lease to run out
		if err := first.wait(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := second.stop(); err != nil || h.holder() != "" {
			t.Errorf("Run: %v; %q holds the lease", err, h.holder())
		}
	})
}

func TestLeadershipEndsTheMomentThatItIsDoubtful(t *testing.T) {
	update := func(h *house, change func(client *replica)) { change(h.replica("admin")) }
	for name, c := range map[string]struct {
		trouble func(*house, *replica)
		within  time.Duration
	}{
		"outage":     {func(_ *house, r *replica) { r.SetDown(clustertest.ErrUnreachable) }, 10 * time.Second},
		"no answers": {func(_ *house, r *replica) { r.Inject(callFault{Release: make(chan struct{})}) }, 10 * time.Second},
		"lost answers": {func(_ *house, r *replica) {
			r.Inject(callFault{Match: isWrite, After: true, Err: clustertest.ErrUnreachable})
		}, 10 * time.Second},
		"late answers": {func(_ *house, r *replica) { r.Inject(callFault{After: true, Delay: 5100 * time.Millisecond}) }, 10 * time.Second},
		"deleted":      {func(h *house, _ *replica) { h.server.DeleteLease("kube-system", "podvol") }, 2 * time.Second},
		"stolen": {func(h *house, _ *replica) {
			update(h, func(admin *replica) {
				leases := admin.config.Client.Leases("kube-system")
				lease, err := leases.Get(h.t.Context(), "podvol", metav1.GetOptions{})
				if err == nil {
					lease.Spec.HolderIdentity = new("thief")
					_, err = leases.Update(h.t.Context(), lease, metav1.UpdateOptions{})
				}
				if err != nil {
					h.t.Error(err)
				}
			})
		}, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inHouse(t, func(t *testing.T, h *house) {
				r := h.start("r")
				h.wantLeader("r")
				c.trouble(h, r)
				time.Sleep(c.within + time.Millisecond)
				r.wantEnded(c.within, election.ErrLost)
				if s := r.health.State(); s.Leading && s.Terms < 2 {
					t.Errorf("health: %+v", s)
				}
				r.ResetCalls()
				r.kill()
			})
		})
	}
}

// An answer that takes its time proves nothing about the time since: others have
// waited from when the lease was renewed.
func TestLateAnswersDoNotExtendLeadership(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		r := h.start("r")
		h.wantLeader("r")
		remove := r.Inject(callFault{Match: isWrite, After: true, Delay: 4900 * time.Millisecond})
		time.Sleep(4 * time.Second) // the renewal was sent at 2 s, and is answered at 6.9 s
		r.Inject(callFault{Release: make(chan struct{})})
		remove()
		time.Sleep(time.Minute)
		r.wantEnded(12*time.Second, election.ErrLost)
		r.kill()
	})
}

func TestASlowAPIIsGoodEnough(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		r := h.replica("r")
		r.Inject(callFault{Delay: 1500 * time.Millisecond}, callFault{After: true, Delay: 1500 * time.Millisecond})
		r.start()
		time.Sleep(time.Hour)
		h.wantLeader("r")
		if s := r.health.State(); s.Terms != 1 {
			t.Errorf("%d terms in an hour", s.Terms)
		}
	})
}

func TestLeadershipIsResumed(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		r := h.start("r")
		h.wantLeader("r")
		r.SetDown(clustertest.ErrUnreachable)
		time.Sleep(10 * time.Minute)
		h.wantLeader("")
		if err := r.health.Check(time.Second); err != nil {
			t.Errorf("the API's outage is no reason to be replaced: %v", err)
		}
		r.SetDown(nil)
		time.Sleep(5 * time.Second)
		h.wantLeader("r")
	})
}

func TestAKilledLeaderIsFollowedAfterItsLease(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		first := h.start("same name")
		h.wantLeader("same name")
		second := h.start("same name")
		time.Sleep(time.Minute)
		if second.health.State().Leading {
			t.Error("it took the other's lease for its own")
		}
		first.kill()
		h.wantLeader("")
		time.Sleep(12 * time.Second)
		h.wantLeader("")
		time.Sleep(12 * time.Second)
		if !second.health.State().Leading {
			t.Errorf("after 24 s: %+v", second.health.State())
		}
	})
}

func TestAnAnswerThatWasLostLeavesNoLeaseBehind(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		r := h.replica("r")
		lose := r.Inject(callFault{Match: isWrite, After: true, Release: make(chan struct{})})
		r.start()
		time.Sleep(time.Second)
		if h.holder() == "" || h.leader() != "" {
			t.Fatal("the lease should be taken, and nobody know it")
		}
		r.cancel()
		lose()
		time.Sleep(time.Second)
		if err := r.wait(); err != nil || h.holder() != "" {
			t.Errorf("Run: %v; %q holds the lease", err, h.holder())
		}
	})
}

func TestAReleaseIsTriedAgain(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		r := h.start("r")
		h.wantLeader("r")
		r.SetDown(clustertest.ErrUnreachable)
		r.cancel()
		time.Sleep(5 * time.Second)
		r.SetDown(nil)
		if err := r.wait(); err != nil || h.holder() != "" {
			t.Errorf("Run: %v; %q holds the lease", err, h.holder())
		}
	})
}

func TestWorkThatDoesNotEnd(t *testing.T) {
	for name, lose := range map[string]func(*replica){
		"after a loss": func(r *replica) { r.SetDown(clustertest.ErrUnreachable) },
		"at the end":   func(r *replica) { r.cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			inHouse(t, func(t *testing.T, h *house) {
				r := h.replica("r")
				release := make(chan struct{})
				r.lead = func(context.Context) error { <-release; return nil }
				r.start()
				h.wantLeader("r")
				lose(r)
				time.Sleep(14 * time.Second)
				if s := r.health.State(); s.Leading || s.Ending.IsZero() || r.health.Check(time.Second) == nil {
					t.Errorf("health: %+v", s)
				}
				err := r.wait()
				if !errors.Is(err, election.ErrNotReturned) || !strings.Contains(err.Error(), "kube-system/podvol") {
					t.Errorf("Run: %v", err)
				}
				if r.health.Check(time.Second) == nil {
					t.Error("it is healthy")
				}
				if h.holder() == "" {
					t.Error("the lease was released")
				}
				r.SetDown(nil)
				r.ResetCalls()
				time.Sleep(time.Minute)
				if calls := r.Calls(); len(calls) > 0 {
					t.Errorf("it goes on to campaign: %v", calls)
				}
				close(release)
			})
		})
	}
}

func TestWorkThatFails(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		failed := errors.New("failed")
		r := h.replica("r")
		var starts []time.Duration
		began := time.Now()
		r.lead = func(context.Context) error { starts = append(starts, time.Since(began)); return failed }
		r.start()
		time.Sleep(200 * time.Millisecond)
		if s := r.health.State(); h.holder() != "" || s.Leading || !errors.Is(s.Err, failed) {
			t.Errorf("%q holds the lease; health: %+v", h.holder(), s)
		}
		time.Sleep(10 * time.Minute)
		if err := r.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		if n := len(starts); n < 10 || n > 25 {
			t.Errorf("tried %d times in ten minutes: %v", n, starts)
		}
	})
}

func TestWorkThatIsDone(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		r := h.replica("r")
		r.lead = func(context.Context) error { return nil }
		r.start()
		if err := r.wait(); err != nil || h.holder() != "" || r.health.State().Terms != 1 {
			t.Errorf("Run: %v; %q holds the lease after %d terms", err, h.holder(), r.health.State().Terms)
		}
	})
}

func TestWorkThatFailsToEnd(t *testing.T) {
	inHouse(t, func(t *testing.T, h *house) {
		r := h.replica("r")
		failed := errors.New("could not be flushed")
		r.lead = func(ctx context.Context) error { <-ctx.Done(); return failed }
		r.start()
		h.wantLeader("r")
		if err := r.stop(); !errors.Is(err, failed) {
			t.Errorf("Run: %v", err)
		}
	})
}

// A machine that was suspended, or whose clock was put forward.
func TestJumpsOfTheClock(t *testing.T) {
	for name, c := range map[string]struct {
		jump  time.Duration
		terms int
	}{"forward": {time.Hour, 2}, "a little": {3 * time.Second, 1}, "back": {-time.Hour, 1}} {
		t.Run(name, func(t *testing.T) {
			inHouse(t, func(t *testing.T, h *house) {
				r := h.replica("r")
				var jumped atomic.Int64
				r.config = r.config.WithWall(func() time.Time { return time.Now().Add(time.Duration(jumped.Load())) })
				r.start()
				time.Sleep(5 * time.Second)
				synctest.Wait()
				jumped.Store(int64(c.jump))
				time.Sleep(3 * time.Second)
				h.wantLeader("r")
				if s := r.health.State(); s.Terms != c.terms {
					t.Errorf("%d terms, want %d", s.Terms, c.terms)
				}
			})
		})
	}
}

func TestConfig(t *testing.T) {
	good := newHouse(t).replica("r").config
	for name, change := range map[string]func(*election.Config){
		"no client":            func(c *election.Config) { c.Client = nil },
		"no name":              func(c *election.Config) { c.Name = "" },
		"no namespace":         func(c *election.Config) { c.Namespace = "" },
		"fractions of seconds": func(c *election.Config) { c.LeaseDuration = 15500 * time.Millisecond },
		"grace too long":       func(c *election.Config) { c.Grace = 6 * time.Second },
		"grace negative":       func(c *election.Config) { c.Grace = -time.Second },
		"drain negative":       func(c *election.Config) { c.Drain = -time.Second },
		"deadline too long":    func(c *election.Config) { c.RenewDeadline = 15 * time.Second },
		"period too long":      func(c *election.Config) { c.RetryPeriod = 9 * time.Second },
		"period too short":     func(c *election.Config) { c.RetryPeriod = time.Millisecond },
	} {
		bad := good
		change(&bad)
		err := election.Run(t.Context(), bad, func(context.Context) error { t.Errorf("%s: leads", name); return nil })
		if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
