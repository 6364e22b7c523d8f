package persistentvolume_test

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume"
	"github.com/podvol/podvol/volume/persistentvolume/index"
)

// counted counts what is written, and says when so many claims have been bound:
// the phase of the claim is the last that is written of a binding.
type counted struct {
	objects.Client
	shared objects.Writer

	mu     sync.Mutex
	writes int
	left   int // claims
	done   chan struct{}
}

func (c *counted) Live() objects.Reader { return objects.Live(c.Client) }

// expect begins to count.
func (c *counted) expect(claims int) (done <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes, c.left, c.done = 0, claims, make(chan struct{})
	return c.done
}

func (c *counted) count(stored metav1.Object, err error) (metav1.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes++
	if claim, ok := stored.(*v1.PersistentVolumeClaim); ok && err == nil && claim.Status.Phase == v1.ClaimBound {
		if c.left--; c.left == 0 {
			close(c.done)
		}
	}
	return stored, err
}

func (c *counted) Create(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return c.count(c.shared.Create(ctx, object))
}

func (c *counted) Update(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return c.count(c.shared.Update(ctx, object))
}

func (c *counted) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	return c.count(c.shared.UpdateStatus(ctx, object))
}

func (c *counted) Delete(ctx context.Context, ref volume.ObjectRef, p objects.Preconditions) error {
	_, err := c.count(nil, c.Client.Delete(ctx, ref, p))
	return err
}

// measured is what it took a controller to bind some claims.
type measured struct {
	took time.Duration
	cpu  time.Duration // of the whole process, with its garbage collector
	// collector is the garbage collector's part of cpu.
	collector time.Duration
	writes    int
	heap      int64 // what the controller keeps, in bytes, beside the store
}

func (m measured) perClaim(claims int) string {
	n := time.Duration(claims)
	return fmt.Sprintf("%v a claim, %v of it on a processor, %.1f writes, %d bytes kept", m.took/n, m.cpu/n, float64(m.writes)/float64(claims), m.heap/int64(claims))
}

func cpuTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// cluster is a store with volumes and a controller beside it, that is ended with
// the test.
type cluster struct {
	tb         testing.TB
	store      *objects.Store
	api        *counted
	controller *persistentvolume.Controller
}

func newCluster(tb testing.TB, volumes []*v1.PersistentVolume) *cluster {
	tb.Helper()
	c := &cluster{tb: tb, store: pvbuild.StoreOf(tb)}
	for _, pv := range volumes {
		c.create(pv)
	}
	c.api = &counted{Client: c.store, shared: objects.Sharing(c.store)}
	c.controller = persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: c.api})
	return c
}

func (c *cluster) create(o metav1.Object) {
	c.tb.Helper()
	if _, err := c.store.Create(c.tb.Context(), o); err != nil {
		c.tb.Fatal(err)
	}
}

func (c *cluster) run() (stop func()) {
	ctx, cancel := context.WithCancel(c.tb.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.controller.Run(ctx) }()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			c.tb.Error(err)
		}
	}
}

// bindAtStart measures a controller that finds volumes and claims when it is
// started, until all claims are bound.
func bindAtStart(tb testing.TB, volumes []*v1.PersistentVolume, wanted []index.Wanted) measured {
	tb.Helper()
	c := newCluster(tb, volumes)
	for _, w := range wanted {
		c.create(w.Claim)
	}
	before, done := heapInUse(), c.api.expect(len(wanted))
	var stop func()
	taken := figures.Take(tb, func() {
		stop = c.run()
		<-done
	})
	m := measured{took: taken.Wall, cpu: taken.CPU, collector: taken.Collector}
	if err := c.controller.Idle(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	m.writes, m.heap = c.api.writes, heapInUse()-before
	stop()
	return m
}

// bindLater measures a controller that knows the volumes, and to which claims
// come, some at a time; the fastest of these counts.
func bindLater(tb testing.TB, volumes []*v1.PersistentVolume, batches ...[]index.Wanted) (best measured) {
	tb.Helper()
	c := newCluster(tb, volumes)
	defer c.run()()
	for _, wanted := range batches {
		if err := c.controller.Idle(tb.Context()); err != nil {
			tb.Fatal(err)
		}
		runtime.GC()
		done := c.api.expect(len(wanted))
		start, cpu := time.Now(), cpuTime(tb)
		for _, w := range wanted {
			c.create(w.Claim)
		}
		<-done
		if took := time.Since(start); best.took == 0 || took < best.took {
			best = measured{took: took, cpu: cpuTime(tb) - cpu, writes: c.api.writes}
		}
	}
	return best
}

// protected makes volumes what they are in a cluster in which nothing is left to
// do for them.
func protected(volumes []*v1.PersistentVolume) []*v1.PersistentVolume {
	for _, pv := range volumes {
		pv.Finalizers = []string{"kubernetes.io/pv-protection"}
	}
	return volumes
}

func batchesOf(wanted []index.Wanted, size int) (batches [][]index.Wanted) {
	for ; len(wanted) >= size; wanted = wanted[size:] {
		batches = append(batches, wanted[:size])
	}
	return batches
}

// TestControllerFigures measures binding through the controller, with all that
// it writes, in memory:
//
//	PODVOL_ASSERT_FIGURES=1 go test ./volume/persistentvolume -run ControllerFigures -v
func TestControllerFigures(t *testing.T) {
	_, asserted := figures.Slack(t)
	rounds, pairs, few, many := 1, 1000, 400, 2000
	if asserted {
		rounds, pairs, few, many = 4, 10_000, pvbuild.FewVolumes, pvbuild.ManyVolumes
	}
	fastest := func(volumes func() []*v1.PersistentVolume) (best measured) {
		for range rounds {
			if m := bindAtStart(t, volumes(), pvbuild.PoolClaims(pairs)); best.took == 0 || m.took < best.took {
				best = m
			}
		}
		t.Logf("%d claims at once: %s", pairs, best.perClaim(pairs))
		if best.writes != 4*pairs {
			t.Errorf("%d writes for %d bindings, want 4 each", best.writes, pairs)
		}
		return best
	}
	fresh := fastest(func() []*v1.PersistentVolume { return pvbuild.Pool(pairs) })
	figures.Report(t, figures.Row{What: fmt.Sprintf("the controller binds %d claims to as many volumes", pairs), Unit: figures.Wall, Ours: fresh.took.Seconds(), Limit: 1},
		figures.Row{What: "heap of the controller for a claim and its volume, beside the store", Unit: figures.Bytes, Ours: float64(fresh.heap) / float64(pairs), Limit: 6 * 1024})
	released := fastest(func() []*v1.PersistentVolume {
		return append(protected(pvbuild.ReleasedPVs(pairs)), pvbuild.Pool(pairs)...)
	})
	figures.Report(t, figures.Row{What: "the same with as many released volumes in the way", Unit: figures.Wall, Ours: released.took.Seconds(), Limit: 1})

	batch := few / 4
	wanted := batchesOf(pvbuild.ManyClaims(3*batch), batch)
	volumes := protected(pvbuild.ManyPVs(many))
	perFew := bindLater(t, protected(pvbuild.ManyPVs(few)), wanted...)
	perMany := bindLater(t, volumes, wanted...)
	perReleased := bindLater(t, append(protected(pvbuild.ReleasedPVs(pairs)), protected(pvbuild.ManyPVs(few))...), wanted...)
	t.Logf("%d claims that come later, of %d volumes: %s", batch, few, perFew.perClaim(batch))
	t.Logf("%d claims that come later, of %d volumes: %s", batch, many, perMany.perClaim(batch))
	t.Logf("%d claims that come later, of %d volumes and %d released: %s", batch, few, pairs, perReleased.perClaim(batch))
	each := func(m measured) time.Duration { return m.took / time.Duration(batch) }
	figures.ReportCurve(t, figures.Curve{What: "the controller binds a claim that comes later", Of: "volumes to choose from", Unit: figures.Wall, Limit: 2,
		Points: []figures.Point{{X: float64(few), Y: each(perFew).Seconds()}, {X: float64(many), Y: each(perMany).Seconds()}}})
	figures.Report(t, figures.Times(fmt.Sprintf("the controller binds a claim that comes later, with %d released volumes", pairs), figures.Wall, each(perReleased), "without", each(perFew), 2))

	plain, scanned := &pvbuild.Scan{Volumes: volumes}, time.Duration(0)
	for _, w := range wanted[0][:10] {
		start := time.Now()
		if pv, _ := plain.Match(w); pv == nil {
			t.Fatal("the scan found nothing")
		}
		if took := time.Since(start); scanned == 0 || took < scanned {
			scanned = took
		}
	}
	figures.Report(t, figures.Times(fmt.Sprintf("the controller binds a claim among %d volumes", many), figures.Wall, each(perMany), "kubelet (linear search alone)", scanned, 0.01))
	if asserted {
		curveOfClaims(t)
	}
}

// curveOfClaims measures what binding one of many claims costs.
func curveOfClaims(t *testing.T) {
	curve := figures.Curve{What: "CPU of the controller for a claim that it binds", Of: "claims at once, of as many volumes", Unit: figures.CPU, Limit: 1.2}
	for _, n := range []int{1000, 10_000, 100_000} {
		rounds := max(1, min(5, 20_000/n))
		var all []measured
		for range rounds {
			all = append(all, bindAtStart(t, pvbuild.Pool(n), pvbuild.PoolClaims(n)))
		}
		slices.SortFunc(all, func(a, b measured) int { return cmp.Compare(a.cpu, b.cpu) })
		median := all[rounds/2]
		curve.Points = append(curve.Points, figures.Each(n, figures.Taken{CPU: median.cpu, Collector: median.collector}))
	}
	figures.ReportCurve(t, curve)
}

const (
	apiLatency  = 5 * time.Millisecond
	slowWorkers = 32
)

// bindOverSlowAPI binds claims over an API that takes its time for each call, and
// of which every twentieth is a conflict. It returns how long that took and how
// many calls were made for a claim.
func bindOverSlowAPI(tb testing.TB, claims int) (took time.Duration, calls float64) {
	tb.Helper()
	s := pvbuild.StoreOf(tb)
	volumes, wanted := pvbuild.Pool(claims), pvbuild.PoolClaims(claims)
	for i := range claims {
		for _, o := range []metav1.Object{volumes[i], wanted[i].Claim} {
			if _, err := s.Create(tb.Context(), o); err != nil {
				tb.Fatal(err)
			}
		}
	}
	client := objectstest.NewClient(s)
	defer client.Close()
	var n atomic.Int64
	client.Inject(
		fault.Fault[objectstest.Call]{Delay: apiLatency},
		fault.Fault[objectstest.Call]{Match: func(objectstest.Call) bool { return n.Add(1)%20 == 0 }, Err: objects.ErrConflict},
	)
	api := &counted{Client: client, shared: objects.Sharing(client)}
	done := api.expect(claims)
	ctx, cancel := context.WithCancel(tb.Context())
	ended := make(chan error, 1)
	start := time.Now()
	go func() {
		ended <- persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: api, Workers: slowWorkers}).Run(ctx)
	}()
	<-done
	took, calls = time.Since(start), float64(client.Count())/float64(claims)
	cancel()
	if err := <-ended; err != nil {
		tb.Fatal(err)
	}
	return took, calls
}

// With an API that takes 5 ms for a call and conflicts, 32 workers are kept busy.
// Time is virtual here, so this is about what waits for what.
func TestASlowAPIKeepsAllWorkersBusy(t *testing.T) {
	claims, share := 1000, 0.6 // of few claims, those that end last leave workers idle for a good part of the time
	if _, asserted := figures.Slack(t); asserted {
		claims, share = 10_000, 0.75
	}
	synctest.Test(t, func(t *testing.T) {
		took, calls := bindOverSlowAPI(t, claims)
		rate := float64(claims) / took.Seconds()
		t.Logf("%d claims: %.0f a second, %.2f calls each", claims, rate, calls)
		ideal := slowWorkers / (calls * apiLatency.Seconds())
		if rate < 300 || rate < share*ideal {
			t.Errorf("%.0f claims a second; want at least 300, and %.0f%% of the %.0f that %d workers could do", rate, 100*share, ideal, slowWorkers)
		}
		// Of four writes one in twenty is a conflict, after which one to three are
		// left.
		if calls > 4.7 {
			t.Errorf("%.2f calls for a claim", calls)
		}
	})
}

// BenchmarkSlowAPI is the same in real time.
func BenchmarkSlowAPI(b *testing.B) {
	const claims = 2000
	for range b.N {
		took, calls := bindOverSlowAPI(b, claims)
		b.ReportMetric(claims/took.Seconds(), "claims/s")
		b.ReportMetric(calls, "calls/claim")
	}
}

// BenchmarkController binds claims of as many volumes, through the in-memory
// store.
func BenchmarkController(b *testing.B) {
	for _, pairs := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(pairs), func(b *testing.B) {
			var total measured
			for range b.N {
				m := bindAtStart(b, pvbuild.Pool(pairs), pvbuild.PoolClaims(pairs))
				total.took, total.cpu, total.writes, total.heap = total.took+m.took, total.cpu+m.cpu, total.writes+m.writes, total.heap+m.heap
			}
			n := float64(b.N * pairs)
			b.ReportMetric(float64(total.took.Nanoseconds())/n, "ns/claim")
			b.ReportMetric(float64(total.cpu.Nanoseconds())/n, "cpu-ns/claim")
			b.ReportMetric(float64(total.writes)/n, "writes/claim")
			b.ReportMetric(float64(total.heap)/n, "B-kept/claim")
		})
	}
}
