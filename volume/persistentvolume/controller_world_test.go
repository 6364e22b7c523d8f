package persistentvolume_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/util/testenv/pvbuild"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/objects/objectstest"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// world is a cluster with a controller. It is used inside of a bubble of
// testing/synctest.
type world struct {
	t          *testing.T
	store      *objects.Store
	server     *clustertest.Server    // of the store; nil: the controller reads and writes that as it is
	network    *clustertest.Transport // to the server, of the process that was started last
	client     *objectstest.Client
	close      func() // what the client keeps
	controller *persistentvolume.Controller
	config     persistentvolume.ControllerConfig
	events     *eventList
	stop       func() // ends the controller, as a crash or a shutdown
	law        *law
	// api is what users and rivals write to.
	api objects.Writer
	// records is where what the store forgets is recorded; empty: it does not
	// forget. Manifests are applied after each start.
	records    string
	manifests  []metav1.Object
	failing    error                                             // of the plugin of the next process
	plugins    func(*objectstest.Client) *volume.VolumePluginMgr // nil: none
	incomplete bool                                              // not all pods are known, until complete is called
	complete   func()
	uncached   bool     // the controller reads the store itself
	slowPod    string   // which it takes a second to read
	afterStart func()   // what else a process does that dies
	storage    *storage // the last that was started

	// The process that is started next dies at a call, before or after its
	// effect; 0: it lives.
	crashAt    int
	crashAfter bool
	died       <-chan struct{}
	// diskAt is the same for changes of the disk.
	diskAt   int
	diskMode string
	diskHit  atomic.Bool
}

func newWorld(t *testing.T, all ...metav1.Object) *world {
	w := &world{t: t, store: pvbuild.StoreOf(t, all...), events: new(eventList)}
	w.api, w.law = w.store, newLaw(w.store)
	if overAPI() {
		w.serve()
	}
	return w
}

// serve puts an API server before the store.
func (w *world) serve() {
	w.server = clustertest.NewServerOf(w.store)
	w.api = restoring{w.server.Writer(), w.server}
	w.server.Observe(w.law.Observe)
}

// start runs a new controller, with a new view of the API, until it has done what
// takes no time.
func (w *world) start() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	if w.records != "" {
		w.forget()
	}
	w.client = w.connect()
	w.died = nil
	if w.crashAt > 0 {
		w.died = w.client.CrashAt(w.crashAt, w.crashAfter)
		w.crashAt = 0
	}
	w.config.Objects, w.config.Events = w.client, w.events
	if w.uncached {
		w.config.Objects = w.store
	}
	if w.slowPod != "" {
		w.config.Objects = slowPod{w.client, w.slowPod}
	}
	if w.plugins != nil {
		w.config.Plugins = w.plugins(w.client)
	}
	closeRecords := func() error { return nil }
	if w.records != "" {
		recorded, err := w.open(ctx)
		if err != nil {
			cancel()
			w.close()
			w.stop = func() {}
			if !errors.Is(err, objectstest.ErrCrashed) && !errors.Is(err, errFull) {
				w.t.Fatal(err)
			}
			return // it has died while it began
		}
		w.config.Objects, w.api, closeRecords = recorded, recorded, recorded.Close
		w.apply()
		synctest.Wait() // lest the cache have heard of a part: then a claim may take what the next one names
	}
	if w.server == nil {
		w.client.Inject(fault.Fault[objectstest.Call]{After: true, Hook: w.law.check})
	}
	w.config.PodsComplete = nil
	if w.incomplete {
		complete := make(chan struct{})
		w.config.PodsComplete, w.complete = complete, sync.OnceFunc(func() { close(complete) })
	}
	w.controller = persistentvolume.NewController(w.config)
	ended := make(chan error, 1)
	go func(c *persistentvolume.Controller) { ended <- c.Run(ctx) }(w.controller)
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("Run: %v", err)
		}
		if err := closeRecords(); err != nil {
			w.t.Error(err)
		}
		w.close()
	})
	w.t.Cleanup(w.stop)
	synctest.Wait() // lest a test depend on how far its workers have come
}

// settle lets everything happen that happens without help.
func (w *world) settle() {
	for range 60 {
		time.Sleep(time.Minute)
		if w.dead() {
			break // and tries everything again and again, in vain
		}
	}
	synctest.Wait()
	if err := errors.Join(w.compareRecords(), w.law.broken()); err != nil {
		w.t.Error(err)
	}
}

func (w *world) create(o metav1.Object) {
	w.t.Helper()
	if _, err := w.api.Create(w.t.Context(), o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) delete(kind, namespace, name string) {
	w.t.Helper()
	if err := w.api.Delete(w.t.Context(), volume.NewObjectRef(kind, namespace, name), objects.Preconditions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) claim(name string) *v1.PersistentVolumeClaim {
	return pvbuild.GetClaim(w.t, w.store, name)
}

func (w *world) pv(name string) *v1.PersistentVolume {
	w.t.Helper()
	return pvbuild.GetPV(w.t, w.store, name)
}

// change has somebody else change a volume.
func (w *world) change(name string, f func(*v1.PersistentVolume)) {
	w.t.Helper()
	pv := w.pv(name).DeepCopy()
	f(pv)
	if _, err := w.api.Update(w.t.Context(), pv); err != nil {
		w.t.Fatal(err)
	}
}

// wantBound checks that claim and volume have each other.
func (w *world) wantBound(claim, pv string) {
	w.t.Helper()
	c := w.claim(claim)
	if c.Spec.VolumeName != pv {
		w.t.Errorf("claim %s has volume %q, want %q; events: %s", claim, c.Spec.VolumeName, pv, w.events)
		return
	}
	v := w.pv(pv)
	if err := claimbinding.Check(c, v); err != nil {
		w.t.Errorf("a node refuses it: %v", err)
	}
	if v.Status.Phase != v1.VolumeBound || c.Annotations["pv.kubernetes.io/bind-completed"] != "yes" {
		w.t.Errorf("volume %s is %s; the claim's annotations are %v", pv, v.Status.Phase, c.Annotations)
	}
}

func (w *world) wantClaim(name string, phase v1.PersistentVolumeClaimPhase) {
	w.t.Helper()
	if got := w.claim(name).Status.Phase; got != phase {
		w.t.Errorf("claim %s is %q, want %q; events: %s", name, got, phase, w.events)
	}
}

func (w *world) wantPV(name string, phase v1.PersistentVolumePhase) {
	w.t.Helper()
	if pv := w.pv(name); pv.Status.Phase != phase {
		w.t.Errorf("volume %s is %q (%s), want %q; events: %s", name, pv.Status.Phase, pv.Status.Message, phase, w.events)
	}
}

// eventList keeps events as "name: type reason message".
type eventList struct {
	mu  sync.Mutex
	all []string
}

func (l *eventList) Event(object runtime.Object, eventType, reason, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, fmt.Sprintf("%s: %s %s %s", object.(metav1.Object).GetName(), eventType, reason, message))
}

func (l *eventList) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

// count returns how many events begin so.
func (l *eventList) count(prefix string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.all {
		if strings.HasPrefix(e, prefix) {
			n++
		}
	}
	return n
}

func (l *eventList) want(t *testing.T, prefix string) {
	t.Helper()
	if n := l.count(prefix); n != 1 {
		t.Errorf("%d events begin with %q, want 1: %s", n, prefix, l)
	}
}

// law is what must be true at any moment: after every single call, or, over an API,
// of each version that is ever stored.
type law struct {
	*objectstest.Bindings
	store *objects.Store

	mu    sync.Mutex
	first error
}

func newLaw(store *objects.Store) *law {
	return &law{Bindings: objectstest.NewBindings(false), store: store}
}

func (l *law) broken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.Err(), l.first)
}

// report notes what is wrong, if it is the first; nil: nothing is.
func (l *law) report(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.first = cmp.Or(l.first, err)
}

func (l *law) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	claims, err := objects.List[*v1.PersistentVolumeClaim](context.Background(), l.store, "PersistentVolumeClaim", "")
	volumes, err2 := objects.List[*v1.PersistentVolume](context.Background(), l.store, "PersistentVolume", "")
	l.first = cmp.Or(l.first, err, err2)
	l.Now(claims, volumes)
}

func storageClass(name string, options ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: "kubernetes.io/no-provisioner"}
	for _, option := range options {
		option(c)
	}
	return c
}

func isDefault(c *storagev1.StorageClass) {
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, "storageclass.kubernetes.io/is-default-class", "true")
}

func waitForConsumer(c *storagev1.StorageClass) {
	c.VolumeBindingMode = new(storagev1.VolumeBindingWaitForFirstConsumer)
}

// sweepCrashes lets the controller die at each call to the API, before and after
// its effect, changes what happens meanwhile, and checks what the next
// controller makes of it. There must be a number of calls at least. In short, it
// dies at some of them.
func sweepCrashes(t *testing.T, atLeast int, prepare func(*testing.T) *world, meanwhile, check func(*world)) {
	t.Helper()
	for _, after := range []bool{false, true} {
		crashed := true
		n := 1
		for ; crashed; n += sweepStep() {
			synctest.Test(t, func(t *testing.T) {
				w := prepare(t)
				w.crashAt, w.crashAfter = n, after
				w.start()
				if w.afterStart != nil {
					w.afterStart()
				}
				w.settle()
				w.stop()
				select {
				case <-w.died:
				default:
					crashed = false
				}
				meanwhile(w)
				w.start()
				w.settle()
				check(w)
			})
			if t.Failed() {
				t.Fatalf("dying at call %d, after it: %v", n, after)
			}
		}
		if n < atLeast {
			t.Fatalf("only %d calls were made", n)
		}
	}
}

// sweepStep is how far apart the crashes of a sweep are: all have the same goroutines.
func sweepStep() int {
	if testtool.Shortened() {
		return 5
	}
	return 1
}
