package cluster_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// world is a client of an API server in virtual time.
type world struct {
	*cluster.Client
	t      *testing.T
	api    *clustertest.Server
	memory *clustertest.Transport
}

func inWorld(t *testing.T, config cluster.Config, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		api := clustertest.NewServer()
		transport := clustertest.NewTransport(api)
		f(t, &world{Client: connect(t, clustertest.Clientset(t, "http://api", transport), config), t: t, api: api, memory: transport})
	})
}

func configMap(name string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: name}, Data: map[string]string{"key": "value"}}
}

func ref(name string) volume.ObjectRef { return volume.NewObjectRef("ConfigMap", "ops", name) }

func (w *world) create(object metav1.Object) {
	w.t.Helper()
	if _, err := w.Create(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

// change writes past the client, whose API may be down.
func (w *world) change(name, value string) {
	w.t.Helper()
	changed := configMap(name)
	changed.Data["key"] = value
	w.api.Direct(w.t, http.MethodPut, changed)
}

// wantValue asks for a config map; an empty value means that it is not found.
func (w *world) wantValue(name, value string) {
	w.t.Helper()
	synctest.Wait()
	got, err := objects.Get[*v1.ConfigMap](w.t.Context(), w, ref(name))
	switch {
	case value == "" && !errors.Is(err, volume.ErrNotFound):
		w.t.Errorf("got %v, %v; want it not found", got, err)
	case value != "" && (err != nil || got.Data["key"] != value):
		w.t.Errorf("got %v, %v; want %q", got, err, value)
	}
}

// count watches an object, and returns how often that has told of it.
func (w *world) count(name string) (calls *atomic.Int64, stop func()) {
	calls = new(atomic.Int64)
	return calls, w.Watch(ref(name), func(volume.ObjectRef) { calls.Add(1) })
}

var bothWays = map[string]cluster.Config{"keyed": {Shared: []string{}}, "shared": {Shared: []string{"ConfigMap"}}}

func TestWhatIsKnownStandsThroughAnOutage(t *testing.T) {
	for way, config := range bothWays {
		t.Run(way, func(t *testing.T) {
			inWorld(t, config, func(t *testing.T, w *world) {
				w.create(configMap("app"))
				w.create(configMap("old"))
				calls, stop := w.count("app")
				defer stop()
				for _, name := range []string{"old", "missing"} {
					_, stop := w.count(name)
					defer stop()
				}
				synctest.Wait()
				w.memory.SetDown(clustertest.ErrUnreachable)
				w.api.DropWatches()
				synctest.Wait()
				before := calls.Load()
				for range 10 {
					time.Sleep(time.Minute)
					w.wantValue("app", "value")
					w.wantValue("old", "value")
					w.wantValue("missing", "")
				}
				if got := calls.Load(); got != before {
					t.Errorf("told %d times of an object that nothing was heard of", got-before)
				}
				_, err := objects.Live(w.Client).Get(t.Context(), ref("app"))
				if err == nil || errors.Is(err, volume.ErrNotFound) {
					t.Errorf("a live look-up during the outage: %v", err)
				}
				w.change("app", "new")
				w.api.Direct(t, http.MethodDelete, configMap("old"))
				w.memory.SetDown(nil)
				time.Sleep(time.Minute)
				w.wantValue("app", "new")
				w.wantValue("old", "")
				if calls.Load() == before {
					t.Error("the change was not told after the outage")
				}
			})
		})
	}
}

func TestAnExpiredWatchListsAgain(t *testing.T) {
	for way, config := range bothWays {
		t.Run(way, func(t *testing.T) {
			inWorld(t, config, func(t *testing.T, w *world) {
				w.create(configMap("app"))
				w.create(configMap("gone"))
				calls, stop := w.count("app")
				defer stop()
				goneCalls, stopGone := w.count("gone")
				defer stopGone()
				w.wantValue("app", "value")
				w.wantValue("gone", "value")
				before, goneBefore := calls.Load(), goneCalls.Load()
				w.memory.SetDown(clustertest.ErrUnreachable)
				w.api.DropWatches()
				synctest.Wait()
				w.change("app", "new")
				w.api.Direct(t, http.MethodDelete, configMap("gone"))
				w.api.Expire()
				w.memory.SetDown(nil)
				time.Sleep(time.Minute)
				w.wantValue("app", "new")
				w.wantValue("gone", "")
				if calls.Load() == before || goneCalls.Load() == goneBefore {
					t.Error("what happened before the list was not told")
				}
			})
		})
	}
}

// A connection may be dead without anybody saying so, or somebody on the way keep it
// open: a watch ends in time by itself.
func TestAWatchThatNobodyEnds(t *testing.T) {
	inWorld(t, cluster.Config{}, func(t *testing.T, w *world) {
		w.create(configMap("app"))
		var dead atomic.Bool // the connections that there are by then
		w.memory.SetHandler(http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
			asked := r.URL.Query()
			asked.Del("timeoutSeconds")
			r.URL.RawQuery = asked.Encode()
			if !dead.Load() {
				to = deadWriter{to, &dead}
			}
			w.api.ServeHTTP(to, r)
		}))
		_, stop := w.count("app")
		defer stop()
		w.wantValue("app", "value")
		synctest.Wait()
		dead.Store(true)
		w.change("app", "new")
		time.Sleep(time.Minute)
		w.wantValue("app", "value")
		time.Sleep(11 * time.Minute) // a watch is for five to ten
		w.wantValue("app", "new")
	})
}

// deadWriter loses what is written once it is dead.
type deadWriter struct {
	http.ResponseWriter
	dead *atomic.Bool
}

func (w deadWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w deadWriter) Write(p []byte) (int, error) {
	if w.dead.Load() {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

func TestManyPodsWatchAnObjectOnce(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		w.create(configMap("app"))
		w.api.Asked()
		var stops []func()
		var all []*atomic.Int64
		for range 1000 {
			calls, stop := w.count("app")
			all, stops = append(all, calls), append(stops, stop)
			w.wantValue("app", "value")
		}
		if got, want := w.api.Asked(), []string{"watch ConfigMap ops/app"}; !slices.Equal(got, want) {
			t.Errorf("asked %v, want %v", got, want)
		}
		for _, calls := range all {
			calls.Store(0)
		}
		w.change("app", "new")
		w.wantValue("app", "new")
		for i, calls := range all {
			if calls.Load() != 1 {
				t.Fatalf("watcher %d was told %d times of one change", i, calls.Load())
			}
		}
		for _, stop := range stops[1:] {
			stop()
		}
		w.change("app", "newer")
		w.wantValue("app", "newer") // one is left
		w.api.Asked()
		stops[0]()
		w.wantValue("app", "newer")
		time.Sleep(time.Hour)
		if got, want := w.api.Asked(), []string{"get ConfigMap ops/app"}; !slices.Equal(got, want) {
			t.Errorf("asked %v, want %v: nobody watches it any more", got, want)
		}
	})
}

func TestImmutableObjectsAreNotWatched(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		fixed := configMap("fixed")
		fixed.Immutable = new(true)
		w.create(fixed)
		_, stop := w.count("fixed")
		defer stop()
		w.wantValue("fixed", "value")
		w.api.Asked()
		w.api.DropWatches() // one that is still open would be opened again
		time.Sleep(time.Hour)
		w.wantValue("fixed", "value")
		if got := w.api.Asked(); len(got) > 0 {
			t.Errorf("asked %v about an immutable object that was known", got)
		}
	})
}

func TestABusyServerIsAskedWhenItSays(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		w.create(configMap("app"))
		w.api.Refuse(func(*http.Request) *metav1.Status {
			return &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
				Details: &metav1.StatusDetails{RetryAfterSeconds: 30}}
		})
		w.api.Asked()
		calls, stop := w.count("app")
		defer stop()
		time.Sleep(5*time.Minute - time.Second)
		if got := len(w.api.Asked()); got == 0 || got > 10 {
			t.Errorf("asked %d times in 5 minutes; Retry-After says every 30 s", got)
		}
		if _, err := w.Get(t.Context(), ref("app")); err == nil || errors.Is(err, volume.ErrNotFound) {
			t.Errorf("got %v, want an error that says nothing about existence", err)
		}
		if calls.Load() != 0 {
			t.Error("told of an object that nothing was heard of")
		}
		w.api.Refuse(nil)
		time.Sleep(2 * time.Minute)
		w.wantValue("app", "value")
		if calls.Load() == 0 {
			t.Error("the first state was not told")
		}
	})
}

func TestOnlyTheAPIServerCanSayThatAnObjectIsMissing(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		for name, refusal := range map[string]*metav1.Status{
			"a proxy":          nil,
			"another resource": clustertest.Status(http.StatusNotFound, metav1.StatusReasonNotFound, clustertest.Request{Name: "other"}, "not found"),
			"forbidden":        clustertest.Status(http.StatusForbidden, metav1.StatusReasonForbidden, clustertest.Request{Name: "app"}, "no"),
		} {
			if refusal == nil {
				w.memory.SetHandler(http.NotFoundHandler())
			}
			w.api.Refuse(func(*http.Request) *metav1.Status { return refusal })
			_, err := w.Get(t.Context(), ref("app"))
			if err == nil || errors.Is(err, volume.ErrNotFound) || errors.Is(err, objects.ErrNotSynced) {
				t.Errorf("%s: %v counts as missing", name, err)
			}
			_, stop := w.count("app")
			_, err = w.Get(t.Context(), ref("app"))
			if err == nil || errors.Is(err, volume.ErrNotFound) {
				t.Errorf("%s, watched: %v counts as missing", name, err)
			}
			if errors.Is(err, objects.ErrNotSynced) {
				t.Errorf("%s: the failure is known, but the answer is %v", name, err)
			}
			stop()
			w.memory.SetHandler(w.api)
		}
		w.api.Refuse(nil)
		w.wantValue("app", "")
	})
}

func TestAClosedClientIsSilent(t *testing.T) {
	for way, config := range bothWays {
		t.Run(way, func(t *testing.T) {
			inWorld(t, config, func(t *testing.T, w *world) {
				w.create(configMap("app"))
				calls, stop := w.count("app")
				w.wantValue("app", "value")
				w.Close()
				w.Close()
				before := calls.Load()
				w.change("app", "new")
				w.wantValue("app", "new")
				if calls.Load() != before {
					t.Error("told after Close")
				}
				stop()
				_, late := w.count("app")
				late()
			})
		})
	}
}

func TestEveryKindIsServed(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		for _, kind := range objects.Kinds() {
			object := kind.New()
			object.SetName("x")
			if kind.Namespaced {
				object.SetNamespace("ops")
			}
			w.create(object)
			r := volume.NewObjectRef(kind.Kind, object.GetNamespace(), "x")
			stop := w.Watch(r, func(volume.ObjectRef) {})
			if got, err := w.Get(t.Context(), r); err != nil || got.GetUID() == "" {
				t.Errorf("watched %s: %v, %v", r, got, err)
			}
			stop()
			if got, err := w.Live().List(t.Context(), kind.Kind, ""); err != nil || len(got) != 1 {
				t.Errorf("list of kind %s: %v, %v", kind.Kind, got, err)
			}
			if _, err := w.List(t.Context(), kind.Kind, ""); !isKeyed(err) {
				t.Errorf("list of kind %s, which is keyed: %v", kind.Kind, err)
			}
			if err := w.Delete(t.Context(), r, objects.Preconditions{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// The moment of a list's first page may be too long ago when the next is read.
func TestALiveListOutlivesItsPages(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		for n := range 1100 {
			w.create(configMap(fmt.Sprintf("map-%04d", n)))
		}
		pages := 0
		w.api.Refuse(func(r *http.Request) *metav1.Status {
			if r.URL.Query().Get("continue") == "" {
				return nil
			}
			if pages++; pages == 1 {
				return nil
			}
			return &apierrors.NewResourceExpired("The provided continue parameter is too old").ErrStatus
		})
		got, err := objects.List[*v1.ConfigMap](t.Context(), w.Live(), "ConfigMap", "ops")
		if err != nil || pages != 2 {
			t.Fatalf("after %d pages more: %v", pages, err)
		}
		for n, m := range got {
			if want := fmt.Sprintf("map-%04d", n); len(got) != 1100 || m.Name != want {
				t.Fatalf("%s is at %d of %d, where %s belongs", m.Name, n, len(got), want)
			}
		}
	})
}

func isKeyed(err error) bool {
	e, ok := errors.AsType[*volume.Failure](err)
	return ok && errors.Is(err, cluster.ErrKeyedKind) && strings.Contains(e.Error(), e.Subject)
}

// Who wants the bundles of a signer is told what has them.
func TestBundlesAreNotListed(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}}, func(t *testing.T, w *world) {
		if _, err := w.List(t.Context(), "ClusterTrustBundle", ""); !isKeyed(err) || !strings.Contains(err.Error(), "clusterhost.NewTrustBundles") {
			t.Errorf("the bundles are listed: %v", err)
		}
		if _, err := w.List(t.Context(), "Secret", ""); !isKeyed(err) || strings.Contains(err.Error(), "TrustBundles") {
			t.Errorf("the secrets are listed: %v", err)
		}
	})
}

func TestWhatCannotBeWatchedIsPolled(t *testing.T) {
	inWorld(t, cluster.Config{Shared: []string{}, Polled: []string{"ConfigMap"}}, func(t *testing.T, w *world) {
		w.api.Refuse(func(r *http.Request) *metav1.Status {
			a, _ := clustertest.ParseRequest(r)
			if a.Verb == "list" || a.Verb == "watch" {
				return clustertest.Status(http.StatusForbidden, metav1.StatusReasonForbidden, a, "a node may not")
			}
			return nil
		})
		calls, stop := w.count("app")
		w.wantValue("app", "")
		w.create(configMap("app"))
		time.Sleep(2 * time.Second)
		w.wantValue("app", "value") // what is new is looked at often
		time.Sleep(time.Hour)
		w.api.Asked()
		before := calls.Load()
		time.Sleep(time.Hour)
		if n := len(w.api.Asked()); n < 50 || n > 60 || calls.Load() != before {
			t.Errorf("asked %d times in an hour, told %d times of nothing", n, calls.Load()-before)
		}
		w.change("app", "new")
		time.Sleep(70 * time.Second)
		w.wantValue("app", "new")
		told := make(chan struct{}, 1)
		stopTold := w.Watch(ref("app"), func(volume.ObjectRef) { told <- struct{}{} })
		w.change("app", "newer")
		<-told
		stopTold()
		w.change("app", "newest")
		time.Sleep(1200 * time.Millisecond)
		w.wantValue("app", "newest") // what has changed is looked at often
		w.memory.SetDown(clustertest.ErrUnreachable)
		time.Sleep(10 * time.Minute)
		w.wantValue("app", "newest")
		w.api.Direct(t, http.MethodDelete, configMap("app"))
		w.memory.SetDown(nil)
		time.Sleep(70 * time.Second)
		w.wantValue("app", "")
		if got := calls.Load() - before; got != 4 {
			t.Errorf("told %d times of three changes and a deletion", got)
		}
		stop()
		w.api.Asked()
		time.Sleep(time.Hour)
		if got := w.api.Asked(); len(got) > 0 {
			t.Errorf("asked %v for nobody", got)
		}
	})
}
