package election_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/objects/cluster/election"
)

func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = nil // they pause by a clock that virtual time turns back
	testtool.Shorten()
	noleak.Main(m)
}

type callFault = fault.Fault[clustertest.Request]

// house is where replicas campaign for one lease, and where it is seen if two lead.
type house struct {
	t      *testing.T
	server *clustertest.Server

	mu      sync.Mutex
	leading []string
	term    int32 // the highest seen
	broken  error
}

func newHouse(t *testing.T) *house { return &house{t: t, server: clustertest.NewServer()} }

func inHouse(t *testing.T, f func(*testing.T, *house)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newHouse(t)) })
}

// replica is one that campaigns, over a network of its own.
type replica struct {
	*clustertest.Transport
	house  *house
	name   string
	config election.Config
	health *election.Health
	// lead is what it does; nil: it returns after linger when its context has ended.
	lead   func(context.Context) error
	linger time.Duration
	cancel context.CancelFunc
	ended  chan struct{}
	err    error // of Run

	mu      sync.Mutex
	since   time.Time // of the first leadership
	until   time.Time // when its context has ended
	because error
}

func (h *house) replica(name string) *replica {
	health := new(election.Health)
	r := &replica{Transport: clustertest.NewTransport(h.server), house: h, name: name, health: health}
	r.config = election.Config{Client: clustertest.Clientset(h.t, "http://api", r.Transport).CoordinationV1(), Namespace: "kube-system", Name: "podvol", Identity: name, Health: health}
	return r
}

func (r *replica) start() *replica {
	ctx, cancel := context.WithCancel(r.house.t.Context())
	r.cancel, r.ended = cancel, make(chan struct{})
	go func() {
		defer close(r.ended)
		r.err = election.Run(ctx, r.config, r.work)
	}()
	r.house.t.Cleanup(func() { _ = r.stop() })
	return r
}

func (h *house) start(name string) *replica { return h.replica(name).start() }

func (r *replica) work(ctx context.Context) error {
	r.house.enters(r.name)
	defer r.house.leaves(r.name)
	r.mu.Lock()
	if r.since.IsZero() {
		r.since = time.Now()
	}
	r.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.until.IsZero() {
			r.until, r.because = time.Now(), context.Cause(ctx)
		}
	})()
	if r.lead != nil {
		return r.lead(ctx)
	}
	<-ctx.Done()
	time.Sleep(r.linger)
	return context.Cause(ctx)
}

func (h *house) enters(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leading = append(h.leading, name)
	if len(h.leading) > 1 {
		h.broken = errors.Join(h.broken, fmt.Errorf("%v lead at the same time", h.leading))
	}
	if lease := h.server.Lease("kube-system", "podvol"); lease != nil { // else it was deleted just now
		if term := *lease.Spec.LeaseTransitions; term < h.term {
			h.broken = errors.Join(h.broken, fmt.Errorf("%s leads by token %d after %d", name, term, h.term))
		} else {
			h.term = term
		}
	}
}

func (h *house) leaves(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, n := range h.leading {
		if n == name {
			h.leading = append(h.leading[:i], h.leading[i+1:]...)
			return
		}
	}
}

// leader returns who leads just now, "" for nobody.
func (h *house) leader() string {
	synctest.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.broken != nil {
		h.t.Error(h.broken)
		h.broken = nil
	}
	if len(h.leading) == 0 {
		return ""
	}
	return h.leading[0]
}

func (h *house) wantLeader(name string) {
	h.t.Helper()
	if got := h.leader(); got != name {
		h.t.Errorf("%q leads, want %q", got, name)
	}
}

// kill ends a replica as SIGKILL does: nothing is released.
func (r *replica) kill() {
	r.SetDown(clustertest.ErrUnreachable)
	r.cancel()
}

func (r *replica) stop() error {
	r.cancel()
	return r.wait()
}

// wait returns what Run returns.
func (r *replica) wait() error {
	<-r.ended
	return r.err
}

func (r *replica) wantEnded(after time.Duration, cause error) {
	r.house.t.Helper()
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	if lasted := r.until.Sub(r.since); r.until.IsZero() || lasted > after || !errors.Is(r.because, cause) {
		r.house.t.Errorf("the context ended after %s because of %v; want within %s because of %v", lasted, r.because, after, cause)
	}
}

func (h *house) holder() string {
	if lease := h.server.Lease("kube-system", "podvol"); lease != nil && lease.Spec.HolderIdentity != nil {
		return *lease.Spec.HolderIdentity
	}
	return ""
}

func isWrite(r clustertest.Request) bool { return r.Kind.Kind == "Lease" && r.Verb != "get" }

var _ http.RoundTripper = (*replica)(nil)
