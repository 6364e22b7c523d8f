package persistentvolume_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/objects/cluster/election"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// elected is a world of processes that campaign for one lease, of which the one that
// has it runs a controller.
type elected struct {
	*world

	mu   sync.Mutex
	busy map[string]*replica // who works on a volume's storage
}

func newElected(t *testing.T, all ...metav1.Object) *elected {
	w := &world{t: t, store: pvbuild.StoreOf(t, all...), events: new(eventList)}
	w.law = newLaw(w.store)
	w.serve()
	return &elected{world: w.withStorage(), busy: make(map[string]*replica)}
}

// The lease's times are long, so that campaigning takes few calls. shortWork is less
// than the grace of a leader that was lost, longWork is more, and what is late by
// longDelay takes effect when another one leads.
const (
	leaseDuration, renewDeadline, retryPeriod = time.Minute, 40 * time.Second, 10 * time.Second

	shortWork = 10 * time.Second
	longWork  = 90 * time.Second
	longDelay = 80 * time.Second
)

// replica is one of the processes, with a network of its own.
type replica struct {
	*clustertest.Transport
	name   string
	health *election.Health
	cancel func()
	ended  chan struct{}
	dead   atomic.Bool
	// takes is how long its plugin works on storage, whatever becomes of its context.
	takes atomic.Int64

	mu    sync.Mutex
	heals []func()
}

func (e *elected) start(name string, troubles ...func(*replica)) *replica {
	e.t.Helper()
	r := &replica{Transport: clustertest.NewTransport(e.server), name: name, health: new(election.Health), ended: make(chan struct{})}
	r.takes.Store(int64(shortWork))
	process, _ := clustertest.Connect(e.t, e.server, r.Transport, "Pod", "PersistentVolume", "PersistentVolumeClaim", "StorageClass")
	for _, trouble := range troubles {
		trouble(r)
	}
	config := e.config
	client := objectstest.NewClientOf(process)
	config.Objects, config.Events, config.Plugins = client, e.events, e.plugins(client)
	e.storage.inTheMidst(func(_ context.Context, do, pv string) error { return e.work(r, do, pv) })
	ctx, cancel := context.WithCancel(e.t.Context())
	r.cancel = cancel
	go func() {
		defer close(r.ended)
		leases := clustertest.Clientset(e.t, "http://api", r.Transport).CoordinationV1()
		err := election.Run(ctx, election.Config{Client: leases, Namespace: "kube-system", Name: "podvol", Identity: name, Health: r.health,
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod},
			func(ctx context.Context) error { return persistentvolume.NewController(config).Run(ctx) })
		if errors.Is(err, election.ErrNotReturned) { // its process ends
			r.dead.Store(true)
			r.SetDown(clustertest.ErrUnreachable)
		} else if err != nil {
			e.law.report(fmt.Errorf("%s: %w", name, err))
		}
	}()
	e.t.Cleanup(func() {
		cancel()
		<-r.ended
	})
	synctest.Wait()
	return r
}

// work is what happens between a plugin's question whether it may do something with
// a volume's storage, and the effect of that.
func (e *elected) work(r *replica, do, pv string) error {
	e.begin(r, do, pv)
	time.Sleep(time.Duration(r.takes.Load()))
	if r.dead.Load() {
		return objectstest.ErrCrashed
	}
	e.mu.Lock()
	delete(e.busy, pv)
	e.mu.Unlock()
	if do != "Provision" {
		e.destroys(r, do, pv)
	}
	return nil
}

// destroys checks that what happens to a volume's data is not done to a claim's that
// can be mounted.
func (e *elected) destroys(r *replica, do, pv string) {
	stored, err := objects.Get[*v1.PersistentVolume](context.Background(), e.store, volume.NewObjectRef("PersistentVolume", "", pv))
	if err != nil {
		return // an administrator has taken it away
	}
	claims, err := objects.List[*v1.PersistentVolumeClaim](context.Background(), e.store, "PersistentVolumeClaim", "")
	e.law.report(err)
	for _, claim := range claims {
		if claimbinding.Check(claim, stored) == nil {
			e.law.report(fmt.Errorf("%s does %s of %s, which %s has", r.name, do, pv, claim.Name))
		}
	}
}

func (e *elected) begin(r *replica, do, pv string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if who := e.busy[pv]; who != nil && !who.dead.Load() {
		e.law.report(fmt.Errorf("%s does %s of %s, and so does %s", r.name, do, pv, who.name))
	}
	e.busy[pv] = r
}

// settle is shorter than elsewhere: campaigning never ends.
func (e *elected) settle(d time.Duration) {
	e.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if err := e.law.broken(); err != nil {
		e.t.Error(err)
	}
}

func (e *elected) wantLeader(r *replica) {
	e.t.Helper()
	if s := r.health.State(); !s.Leading {
		e.t.Errorf("%s does not lead: %+v", r.name, s)
	}
}

// heal ends what keeps a replica from the API.
func (r *replica) heal() {
	r.mu.Lock()
	heals := r.heals
	r.heals = nil
	r.mu.Unlock()
	for _, heal := range heals {
		heal()
	}
	if r.dead.Load() {
		r.SetDown(clustertest.ErrUnreachable)
	}
}

// atHeal has f called when the replica reaches the API again.
func (r *replica) atHeal(f ...func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heals = append(r.heals, f...)
}

// cut cuts a replica off from the API at a write, and calls hit then.
type cut func(r *replica, at int, hit func())

func writesOfAll(r clustertest.Request) bool {
	return writesOfControllers(r) || r.Kind.Kind == "ConfigMap" && r.Verb != "get" && r.Verb != "list" && r.Verb != "watch"
}

// arm injects a fault until the replica heals.
func arm(r *replica, f fault.Fault[clustertest.Request]) { r.atHeal(r.Inject(f)) }

func cuts() map[string]cut {
	down := func(after bool) cut {
		return func(r *replica, at int, hit func()) {
			arm(r, fault.Fault[clustertest.Request]{Match: writesOfAll, Nth: at, After: after, Err: clustertest.ErrUnreachable, Hook: func() {
				r.SetDown(clustertest.ErrUnreachable)
				r.atHeal(func() { r.SetDown(nil) })
				hit()
			}})
		}
	}
	// What is sent takes effect when the next one leads already.
	late := func(r *replica, at int, hit func()) {
		arm(r, fault.Fault[clustertest.Request]{Match: writesOfAll, Nth: at, After: true, Hook: func() {
			r.SetLate(writesOfControllers, longDelay)
			heal := r.Inject(fault.Fault[clustertest.Request]{Err: clustertest.ErrUnreachable})
			r.atHeal(heal, func() { r.SetLate(nil, 0) })
			hit()
		}})
	}
	return map[string]cut{
		"nothing is taken":     down(false),
		"the answers are lost": down(true),
		"nothing is answered": func(r *replica, at int, hit func()) {
			healed := make(chan struct{})
			arm(r, fault.Fault[clustertest.Request]{Match: writesOfAll, Nth: at, Release: healed, Hook: func() {
				r.Inject(fault.Fault[clustertest.Request]{Release: healed})
				r.atHeal(func() { close(healed) })
				hit()
			}})
		},
		"what it writes is late": late,
		"its plugin does not end, and what it writes is late": func(r *replica, at int, hit func()) {
			r.takes.Store(int64(longWork))
			r.atHeal(func() { r.takes.Store(int64(shortWork)) })
			late(r, at, hit)
		},
	}
}

// Whatever write a leader is cut off at, while volumes are made and emptied: another
// one leads soon, each claim gets its own volume, no data is touched that may be
// somebody's by then, and nothing is left of what has gone. The former leader leads
// again when the other ends.
func TestALeaderIsCutOffAtEveryWrite(t *testing.T) {
	for name, cutOff := range cuts() {
		t.Run(name, func(t *testing.T) {
			at, more := 1, true
			step := 1
			if testtool.Shortened() {
				step = 20
			}
			for ; more; at += step {
				synctest.Test(t, func(t *testing.T) { more = leadTwice(t, at, cutOff) })
				if t.Failed() {
					t.Fatalf("cut off at write %d", at)
				}
			}
			if at < 15 {
				t.Fatalf("only %d writes were made", at)
			}
		})
	}
}

// leadTwice reports whether a leader was cut off.
func leadTwice(t *testing.T, at int, cutOff cut) (hit bool) {
	e := newElected(t, storageClass("fast", made), pvbuild.NewPV("recycled", "1Gi", withPolicy(v1.PersistentVolumeReclaimRecycle), pvbuild.ForClaim("gone", "gone"), pvbuild.InPhase(v1.VolumeBound), boundByController),
		pvbuild.NewClaim("data", "1Gi", pvbuild.OfClass("fast")), pvbuild.NewClaim("next", "1Gi"), pvbuild.NewClaim("short", "1Gi", pvbuild.OfClass("fast")))
	var wasHit atomic.Bool
	first := e.start("first", func(r *replica) { cutOff(r, at, func() { wasHit.Store(true) }) })
	e.wantLeader(first)
	second := e.start("second")
	time.AfterFunc(time.Minute, func() { e.delete("PersistentVolumeClaim", "ops", "short") })
	e.settle(7 * time.Minute)
	leader, other := first, second
	if wasHit.Load() {
		leader, other = second, first
	}
	e.wantLeader(leader)
	e.wantBound("data", "pvc-uid-data")
	e.wantBound("next", "recycled")
	e.wantGone("PersistentVolumeClaim", "ops", "short")
	e.wantGone("PersistentVolume", "", "pvc-uid-short")
	e.wantStored("pvc-uid-data")

	first.heal()
	if first.dead.Load() {
		first = e.start("first, again")
		other = first
	}
	time.Sleep(retryPeriod)
	e.delete("PersistentVolumeClaim", "ops", "data")
	e.delete("PersistentVolumeClaim", "ops", "next")
	time.Sleep(time.Second)
	leader.cancel() // while its plugin works
	e.settle(4 * time.Minute)
	e.wantLeader(other)
	e.wantGone("PersistentVolume", "", "pvc-uid-data")
	e.wantPV("recycled", v1.VolumeAvailable)
	e.wantStored()
	return wasHit.Load()
}

func (e *elected) wantStored(names ...string) {
	e.t.Helper()
	if got := fmt.Sprint(e.stored()); got != fmt.Sprint(names) {
		e.t.Errorf("storage %v exists, want %v", got, names)
	}
}
