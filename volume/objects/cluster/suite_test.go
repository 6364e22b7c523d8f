package cluster_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/podvol/podvol/util/testenv/noleak"
	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

func TestMain(m *testing.M) {
	// They log, and pause by a clock that virtual time turns back.
	utilruntime.ErrorHandlers = nil
	testtool.Shorten()
	noleak.Main(m)
}

// connect returns a client whose shared kinds are synced.
func connect(t *testing.T, set kubernetes.Interface, config cluster.Config) *cluster.Client {
	t.Helper()
	c, start := prepare(t, set, config)
	start()
	if err := c.WaitForSync(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// prepare returns a client, and what starts its informers.
func prepare(t *testing.T, set kubernetes.Interface, config cluster.Config) (c *cluster.Client, start func()) {
	t.Helper()
	factory := informers.NewSharedInformerFactory(set, 0)
	c, err := cluster.FromInformers(factory, set, config)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	t.Cleanup(func() {
		c.Close()
		close(stop)
		factory.Shutdown()
	})
	return c, func() { factory.Start(stop) }
}

// ways are the two ways to read the suite's kinds.
var ways = map[string][]string{"keyed": {}, "shared": {"ConfigMap", "Node"}}

func fixture(c *cluster.Client, shared []string) objectstest.Fixture {
	f := objectstest.Fixture{Source: c, Writer: c, Namespaces: [2]string{"ops", "dev"}}
	if len(shared) > 0 {
		f.Lister = c
	}
	return f
}

func TestSuiteOnAnAPIServer(t *testing.T) {
	for way, shared := range ways {
		t.Run(way, func(t *testing.T) {
			objectstest.Suite(t, func(t *testing.T) objectstest.Fixture {
				api := clustertest.NewServer()
				server := httptest.NewServer(api)
				t.Cleanup(server.Close)
				t.Cleanup(api.DropWatches)
				transport := &http.Transport{}
				t.Cleanup(transport.CloseIdleConnections)
				set := clustertest.Clientset(t, server.URL, transport)
				f := fixture(connect(t, set, cluster.Config{Shared: shared}), shared)
				f.Unsynced = func(t *testing.T) (objects.Source, func()) { return unsynced(t, api, set, shared) }
				f.Break = func(*testing.T) (restore func()) {
					api.Refuse(func(*http.Request) *metav1.Status {
						return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError}
					})
					return func() { api.Refuse(nil) }
				}
				return f
			})
		})
	}
}

// unsynced returns a client that gets no answer to lists and watches until sync
// is called.
func unsynced(t *testing.T, api *clustertest.Server, set kubernetes.Interface, shared []string) (objects.Source, func()) {
	c, start := prepare(t, set, cluster.Config{Shared: shared, Wait: time.Millisecond})
	if len(shared) > 0 {
		return c, sync.OnceFunc(start)
	}
	held := make(chan struct{})
	api.Refuse(func(r *http.Request) *metav1.Status {
		if a, _ := clustertest.ParseRequest(r); a.Verb == "list" || a.Verb == "watch" {
			select {
			case <-held:
			case <-r.Context().Done():
			}
		}
		return nil
	})
	return c, sync.OnceFunc(func() { close(held) })
}

// What client-go's fake clientset does otherwise than an API server. The keyed
// and the shared way differ in nothing.
func TestSuiteOnTheFakeClientset(t *testing.T) {
	for way, shared := range ways {
		t.Run(way, func(t *testing.T) {
			objectstest.Suite(t, func(t *testing.T) objectstest.Fixture {
				set := fake.NewClientset()
				tellOfChanges(set)
				f := fixture(connect(t, set, cluster.Config{Shared: shared}), shared)
				f.Deviations = fakeDeviations()
				f.Break = func(*testing.T) (restore func()) {
					var restored atomic.Bool
					set.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
						return !restored.Load(), nil, errors.New("broken")
					})
					return func() { restored.Store(true) }
				}
				return f
			})
		})
	}
}

// tellOfChanges has watches tell also of what was made, changed or deleted between the
// list and them, as those of a server do; the fake's do so in part from client-go 0.37
// on. The fake makes one call after the other.
func tellOfChanges(set *fake.Clientset) {
	made := make(map[schema.GroupVersionResource][]metav1.Object)
	set.PrependReactor("create", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		kind := action.GetResource()
		made[kind] = append(made[kind], action.(clienttesting.CreateAction).GetObject().DeepCopyObject().(metav1.Object))
		return false, nil, nil
	})
	set.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		kind, namespace := action.GetResource(), action.GetNamespace()
		events, err := set.Tracker().Watch(kind, namespace, action.(clienttesting.WatchActionImpl).ListOptions)
		if err != nil {
			return true, nil, err
		}
		for _, object := range made[kind] {
			if namespace != metav1.NamespaceAll && namespace != object.GetNamespace() {
				continue
			}
			now, err := set.Tracker().Get(kind, object.GetNamespace(), object.GetName())
			switch {
			case err == nil:
				events.(*watch.RaceFreeFakeWatcher).Add(now)
			case apierrors.IsNotFound(err):
				events.(*watch.RaceFreeFakeWatcher).Delete(object.(runtime.Object))
			}
		}
		return true, events, nil
	})
}

func fakeDeviations() map[objectstest.Contract]objectstest.Deviation {
	noVersions := objectstest.Deviation{Why: "the fake gives no UIDs, versions and times"}
	noPreconditions := objectstest.Deviation{Why: "the fake does not check preconditions"}
	oneStatus := objectstest.Deviation{Why: "the fake writes spec and status alike"}
	noFinalizers := objectstest.Deviation{Why: "the fake deletes at once, whatever the finalizers"}
	return map[objectstest.Contract]objectstest.Deviation{
		objectstest.CreateGivesIdentity:  noVersions,
		objectstest.VersionsGrow:         noVersions,
		objectstest.RecreatedIsAnother:   noVersions,
		objectstest.UpdateChecksUID:      noPreconditions,
		objectstest.UpdateChecksVersion:  noPreconditions,
		objectstest.StatusChecksUID:      noPreconditions,
		objectstest.StatusChecksVersion:  noPreconditions,
		objectstest.DeleteChecksUID:      noPreconditions,
		objectstest.DeleteChecksVersion:  noPreconditions,
		objectstest.ConcurrentUpdates:    {Why: noPreconditions.Why, Sometimes: true},
		objectstest.UpdateLeavesStatus:   oneStatus,
		objectstest.StatusLeavesRest:     oneStatus,
		objectstest.FinalizersDelay:      noFinalizers,
		objectstest.FinalizersCannotGrow: noFinalizers,
		objectstest.DeletionKeepsTime:    noFinalizers,
	}
}
