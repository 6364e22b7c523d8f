package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/figures"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume"
)

const (
	callLatency  = 5 * time.Millisecond
	claimWorkers = 32
	// Of writesToConflict writes of claims and volumes, one finds that somebody else
	// has just changed the object.
	writesToConflict = 20
)

// Claims are bound through an API that takes 5 ms for a call, and where somebody
// else changes the objects as well. In virtual time only waiting counts, so this is
// about what waits for what.
func TestFiguresOfClaims(t *testing.T) {
	claims, share := 500, 0.5 // of few claims, those that end last leave workers idle for a good part of the time
	if _, asserted := figures.Slack(t); asserted {
		claims, share = 10_000, 0.75
	}
	synctest.Test(t, func(t *testing.T) {
		b := bindClaims(t, claims)
		b.report(t, "virtual time")
		figures.Report(t, figures.Row{What: fmt.Sprintf("requests for a claim, of %d over an API with conflicts", claims), Unit: figures.Count, Ours: b.calls(), Limit: 4.7})
		ideal := claimWorkers / (b.calls() * callLatency.Seconds())
		if rate := b.rate(); rate < 300 || rate < share*ideal {
			t.Errorf("%.0f claims a second; want at least 300, and %.0f%% of the %.0f that %d workers could do", rate, 100*share, ideal, claimWorkers)
		}
	})
}

// The same in real time, in which the client, the controller and the server in
// memory share this machine.
func TestFiguresOfClaimsInRealTime(t *testing.T) {
	_, asserted := figures.Slack(t)
	claims := 500
	if asserted {
		claims = 10_000
	}
	b := bindClaims(t, claims)
	b.report(t, "real time")
	what, most := fmt.Sprintf("%d claims are bound over an API that takes 5 ms a call", claims), float64(claims)/300
	figures.Report(t, figures.Row{What: what, Unit: figures.Wall, Ours: b.took.Seconds(), Limit: most},
		figures.Row{What: what, Unit: figures.CPU, Ours: b.cpu.Seconds(), Limit: most})
}

// binding is what it took to bind claims.
type binding struct {
	claims    int
	took, cpu time.Duration
	requests  map[string]int // by what they ask for
	conflicts int            // writes that were refused
}

func (b *binding) rate() float64 { return float64(b.claims) / b.took.Seconds() }

// calls is how many requests were made for a claim.
func (b *binding) calls() float64 {
	all := 0
	for _, n := range b.requests {
		all += n
	}
	return float64(all) / float64(b.claims)
}

func (b *binding) report(t *testing.T, where string) {
	t.Helper()
	t.Logf("%s: %d claims: %.0f a second, %v of a processor and %.2f requests each, %d conflicts", where, b.claims, b.rate(),
		(b.cpu / time.Duration(b.claims)).Round(time.Microsecond), b.calls(), b.conflicts)
	for _, what := range slices.Sorted(maps.Keys(b.requests)) {
		t.Logf("%8d %s", b.requests[what], what)
	}
	// Of four writes one in twenty is a conflict, after which the API is asked what
	// there is now, and one to three writes are left. At the start each worker may
	// ask for the class.
	if b.calls() > 4.7 {
		t.Errorf("%.2f requests for a claim", b.calls())
	}
	if least := 4 * b.claims / writesToConflict; b.conflicts < least {
		t.Errorf("%d writes were conflicts, want at least %d", b.conflicts, least)
	}
}

// bindClaims has a controller bind claims to as many volumes, and checks in all that
// is ever stored that none is given away twice, be it for a moment.
func bindClaims(t *testing.T, claims int) *binding {
	t.Helper()
	server := clustertest.NewServer()
	ever := objectstest.NewBindings(true)
	server.Observe(ever.Observe)
	for i, size := range rand.Perm(claims) {
		for _, object := range []metav1.Object{pooled(size), wanting(i)} {
			if _, err := server.Writer().Create(t.Context(), object); err != nil {
				t.Fatal(err)
			}
		}
	}
	network := clustertest.NewTransport(server)
	answers := &answers{RoundTripper: network}
	process, stop := clustertest.Connect(t, server, answers, "Pod", "PersistentVolume", "PersistentVolumeClaim", "StorageClass", "Node")
	defer stop()
	network.Inject(fault.Fault[clustertest.Request]{Delay: callLatency})
	server.Refuse(interfering(t, server))
	server.Asked()
	network.ResetCalls()
	api := &boundClaims{Process: process, left: claims, all: make(chan struct{})}
	controller := persistentvolume.NewController(persistentvolume.ControllerConfig{Objects: api, Workers: claimWorkers})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	start, before := time.Now(), cpuUsed()
	go func() { ended <- controller.Run(ctx) }()
	select {
	case <-api.all:
	case <-time.After(5 * time.Minute):
		t.Fatal("not all claims are bound after five minutes")
	}
	b := &binding{claims: claims, took: time.Since(start), cpu: cpuUsed() - before, conflicts: int(answers.conflicts.Load()), requests: make(map[string]int)}
	for _, r := range network.Calls() {
		what := r.Verb + " " + r.Kind.Kind
		if r.Status {
			what += " status"
		}
		b.requests[what]++
	}
	if err := controller.Idle(t.Context()); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := ever.Err(); err != nil {
		t.Error(err)
	}
	if n := ever.Bound(); n != claims {
		t.Errorf("%d of %d claims are bound in the end", n, claims)
	}
	return b
}

func pooled(i int) *v1.PersistentVolume {
	return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pool-%06d", i)}, Spec: v1.PersistentVolumeSpec{
		Capacity: storage(i), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadWriteMany}, StorageClassName: "pool",
		PersistentVolumeReclaimPolicy: v1.PersistentVolumeReclaimRetain,
		PersistentVolumeSource:        v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "10.0.0.1", Path: "/export"}}}}
}

func wanting(i int) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: fmt.Sprintf("claim-%06d", i)}, Spec: v1.PersistentVolumeClaimSpec{
		StorageClassName: new("pool"), AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
		Resources: v1.VolumeResourceRequirements{Requests: storage(i)}}}
}

// storage is 1 to 20 Gi.
func storage(i int) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: *resource.NewQuantity(int64(1+i%20)<<30, resource.BinarySI)}
}

// interfering changes, just before some of the writes that the API gets, what they
// are to change.
func interfering(t *testing.T, server *clustertest.Server) func(*http.Request) *metav1.Status {
	var writes atomic.Int64
	return func(r *http.Request) *metav1.Status {
		if r.Method != http.MethodPut || writes.Add(1)%writesToConflict != 0 {
			return nil
		}
		a, _ := clustertest.ParseRequest(r)
		object, err := server.Store().Get(r.Context(), a.Ref())
		if err != nil {
			t.Error(err)
			return nil
		}
		changed := object.(runtime.Object).DeepCopyObject().(metav1.Object)
		changed.SetLabels(map[string]string{"seen": fmt.Sprint(writes.Load())})
		if _, err = server.Writer().Update(r.Context(), changed); err != nil && !errors.Is(err, objects.ErrConflict) {
			t.Errorf("%s could not be changed by others: %v", a.Ref(), err)
		}
		return nil
	}
}

// answers counts those that are conflicts.
type answers struct {
	http.RoundTripper
	conflicts atomic.Int64
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := a.RoundTripper.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusConflict {
		a.conflicts.Add(1)
	}
	return response, err
}

// boundClaims says when all claims have been bound: the phase of the claim is the
// last that is written of a binding.
type boundClaims struct {
	*clustertest.Process

	mu   sync.Mutex
	left int
	all  chan struct{}
}

func (b *boundClaims) UpdateStatus(ctx context.Context, object metav1.Object) (metav1.Object, error) {
	stored, err := b.Process.UpdateStatus(ctx, object)
	if claim, ok := stored.(*v1.PersistentVolumeClaim); ok && err == nil && claim.Status.Phase == v1.ClaimBound {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.left--; b.left == 0 {
			close(b.all)
		}
	}
	return stored, err
}
