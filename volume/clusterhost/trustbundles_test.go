package clusterhost_test

import (
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/volumemanager"
)

func certificate(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

func bundle(name, signer, team string, certificates ...string) metav1.Object {
	b := kubeapi.TrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": team}}, SignerName: signer}
	for _, c := range certificates {
		b.PEM += "# a comment\n" + certificate(c)
	}
	return kubeapi.MakeTrustBundle(b)
}

func certificates(all ...string) (text string) {
	for _, c := range all {
		text += certificate(c)
	}
	return text
}

func (w *world) bundles(config clusterhost.TrustBundlesConfig) *clusterhost.TrustBundles {
	w.t.Helper()
	b := clusterhost.NewTrustBundles(w.clientset, config)
	w.t.Cleanup(b.Close)
	return b
}

const signer = "example.com/s"

func TestTrustBundlesByNameAndSigner(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.add(bundle("one", signer, "a", "2", "1", "2"), bundle("two", signer, "b", "3", "1"), bundle("other", "example.com/other", "a", "9"), bundle("none", "", "a", "0"))
		b := w.bundles(clusterhost.TrustBundlesConfig{})
		time.Sleep(time.Hour)
		if asked := w.api.Asked(); len(asked) > 0 {
			t.Errorf("asked before anybody has: %v", asked)
		}
		if got, err := b.GetTrustBundle(t.Context(), "one"); err != nil || got != certificates("1", "2") {
			t.Errorf("by name: %q, %v", got, err)
		}
		for name, tc := range map[string]struct {
			signer   string
			selector *metav1.LabelSelector
			want     string
		}{
			"all":             {signer, &metav1.LabelSelector{}, certificates("1", "2", "3")},
			"selected":        {signer, &metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}}, certificates("1", "3")},
			"no selector":     {signer, nil, ""},
			"none selected":   {signer, &metav1.LabelSelector{MatchLabels: map[string]string{"team": "c"}}, ""},
			"unknown signer":  {"example.com/x", &metav1.LabelSelector{}, ""},
			"without signers": {"", &metav1.LabelSelector{}, certificates("0")},
		} {
			got, err := b.GetTrustBundlesBySigner(t.Context(), tc.signer, tc.selector)
			if got != tc.want || (tc.want == "") != errors.Is(err, volume.ErrNotFound) {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		_, err := b.GetTrustBundlesBySigner(t.Context(), signer, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "?"}}})
		if _, ok := errors.AsType[*volume.InvalidSpecError](err); !ok {
			t.Errorf("a bad selector: %v", err)
		}
		if _, err := b.GetTrustBundle(t.Context(), "missing"); !errors.Is(err, volume.ErrNotFound) {
			t.Errorf("a missing one: %v", err)
		}
		w.api.DropWatches()
		time.Sleep(time.Minute)
		w.api.Asked()
		time.Sleep(time.Hour)
		if n := w.asked(""); n > 12 { // a watch is opened again every 5 to 10 minutes
			t.Errorf("%d requests in an hour while nothing changes", n)
		}
	})
}

// An API server before Kubernetes 1.37 serves the beta version, if anything, until it is
// upgraded.
func TestTrustBundlesOfTheBetaVersion(t *testing.T) {
	if kubeapi.TrustBundleVersion() == certificatesv1beta1.SchemeGroupVersion {
		t.Skip("this minor of k8s.io/api knows the beta version only")
	}
	stable := kubeapi.MakeTrustBundle(kubeapi.TrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "one"}, PEM: certificate("2")})
	synctest.Test(t, func(t *testing.T) {
		set := fake.NewClientset(
			&certificatesv1beta1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: certificatesv1beta1.ClusterTrustBundleSpec{TrustBundle: certificate("1")}},
			stable.(runtime.Object))
		var served atomic.Pointer[string]
		served.Store(new("v1beta1"))
		set.PrependReactor("list", "clustertrustbundles", func(a clienttesting.Action) (bool, runtime.Object, error) {
			if version := a.GetResource(); version.Version != *served.Load() {
				return true, nil, apierrors.NewNotFound(version.GroupResource(), "")
			}
			return false, nil, nil
		})
		var watches watchers
		set.PrependWatchReactor("clustertrustbundles", watches.open)
		b := clusterhost.NewTrustBundles(set, clusterhost.TrustBundlesConfig{})
		defer b.Close()
		if got, err := b.GetTrustBundle(t.Context(), "one"); err != nil || got != certificates("1") {
			t.Errorf("%q, %v", got, err)
		}
		synctest.Wait()
		served.Store(new("v1"))
		watches.end()
		time.Sleep(5 * time.Minute)
		if got, err := b.GetTrustBundle(t.Context(), "one"); err != nil || got != certificates("2") {
			t.Errorf("after an upgrade: %q, %v", got, err)
		}
	})
}

// watchers are the watches that a server has open.
type watchers struct {
	mu  sync.Mutex
	all []*watch.FakeWatcher
}

func (w *watchers) open(clienttesting.Action) (bool, watch.Interface, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	opened := watch.NewFake()
	w.all = append(w.all, opened)
	return true, opened, nil
}

// end ends all watches with the news that their version has expired.
func (w *watchers) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, opened := range w.all {
		opened.Error(&apierrors.NewResourceExpired("too old").ErrStatus)
	}
	w.all = nil
}

func TestTrustBundlesThatAreNotServed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := w.bundles(clusterhost.TrustBundlesConfig{})
		w.transport.SetHandler(http.NotFoundHandler())
		for range 1000 {
			_, err := b.GetTrustBundle(t.Context(), "one")
			if !errors.Is(err, clusterhost.ErrNotServed) || errors.Is(err, volume.ErrNotFound) {
				t.Fatalf("%v", err)
			}
			for _, word := range []string{"1.33", "feature gate ClusterTrustBundle", "--runtime-config=certificates.k8s.io/v1beta1"} {
				if !strings.Contains(err.Error(), word) {
					t.Fatalf("it does not say %q: %v", word, err)
				}
			}
		}
		versions := 2
		if kubeapi.TrustBundleVersion() == certificatesv1beta1.SchemeGroupVersion {
			versions = 1
		}
		if n := len(w.transport.Calls()); n != versions {
			t.Errorf("%d requests for %d versions", n, versions)
		}
		time.Sleep(time.Hour)
		if n := len(w.transport.Calls()); n != versions {
			t.Errorf("%d requests while nobody asks", n)
		}
		w.transport.SetHandler(w.api)
		w.add(bundle("one", signer, "a", "1"))
		if got, err := b.GetTrustBundle(t.Context(), "one"); err != nil || got != certificates("1") {
			t.Errorf("once it is served: %q, %v", got, err)
		}
	})
}

// A server refuses before it looks for what there is: a node may list bundles only
// where they are on. What is served is open to everybody.
func TestARefusalIsNotTakenForBundlesThatAreServed(t *testing.T) {
	for name, c := range map[string]struct {
		kinds     []string // of certificates.k8s.io/v1beta1
		code      int      // of the discovery
		notServed bool
	}{
		"off":            {[]string{"PodCertificateRequest"}, http.StatusOK, true},
		"no such group":  {nil, http.StatusNotFound, true},
		"on":             {[]string{"PodCertificateRequest", "ClusterTrustBundle"}, http.StatusOK, false},
		"does not say":   {nil, http.StatusForbidden, false},
		"cannot tell it": {nil, http.StatusServiceUnavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.transport.SetHandler(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
					answer.Header().Set("Content-Type", "application/json")
					switch {
					case strings.HasSuffix(r.URL.Path, "/clustertrustbundles"):
						answer.WriteHeader(http.StatusForbidden)
						answer.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`))
					case strings.HasSuffix(r.URL.Path, "/v1beta1") && c.code == http.StatusOK:
						var kinds []string
						for _, kind := range c.kinds {
							kinds = append(kinds, `{"kind":"`+kind+`"}`)
						}
						answer.Write([]byte(`{"kind":"APIResourceList","apiVersion":"v1","resources":[` + strings.Join(kinds, ",") + `]}`))
					case c.code == http.StatusOK:
						http.NotFound(answer, r)
					default:
						http.Error(answer, "no", c.code)
					}
				}))
				_, err := w.bundles(clusterhost.TrustBundlesConfig{}).GetTrustBundle(t.Context(), "one")
				if notServed := errors.Is(err, clusterhost.ErrNotServed); notServed != c.notServed || !notServed && !apierrors.IsForbidden(err) {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

func TestWhatIsKnownOfBundlesStands(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := w.bundles(clusterhost.TrustBundlesConfig{})
		w.transport.SetDown(clustertest.ErrUnreachable)
		if _, err := b.GetTrustBundle(t.Context(), "one"); !errors.Is(err, clustertest.ErrUnreachable) {
			t.Errorf("before anything is known: %v", err)
		}
		w.transport.SetDown(nil)
		w.add(bundle("one", signer, "a", "1"))
		time.Sleep(time.Minute)
		w.transport.SetDown(clustertest.ErrUnreachable)
		w.api.DropWatches()
		w.add(bundle("two", signer, "a", "2"))
		time.Sleep(time.Hour)
		if got, err := b.GetTrustBundlesBySigner(t.Context(), signer, &metav1.LabelSelector{}); err != nil || got != certificates("1") {
			t.Errorf("during an outage: %q, %v", got, err)
		}
		w.transport.SetDown(nil)
		time.Sleep(time.Minute)
		if got, err := b.GetTrustBundlesBySigner(t.Context(), signer, &metav1.LabelSelector{}); err != nil || got != certificates("1", "2") {
			t.Errorf("after it: %q, %v", got, err)
		}
		b.Close()
		if got, err := b.GetTrustBundle(t.Context(), "one"); err != nil || got != certificates("1") {
			t.Errorf("closed: %q, %v", got, err)
		}
		other := w.bundles(clusterhost.TrustBundlesConfig{})
		other.Close()
		if _, err := other.GetTrustBundle(t.Context(), "one"); err == nil {
			t.Error("one that was closed before it knew anything says nothing")
		}
		hanging := w.bundles(clusterhost.TrustBundlesConfig{Wait: time.Second})
		defer w.transport.Inject(apiFault{Release: make(chan struct{})})()
		if _, err := hanging.GetTrustBundle(t.Context(), "one"); !errors.Is(err, objects.ErrNotSynced) {
			t.Errorf("no answer: %v", err)
		}
	})
}

// Bundles that come, change and go reach the volumes that show them, by name and by
// signer, with nobody polling.
func TestBundlesReachMountedVolumes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := w.bundles(clusterhost.TrustBundlesConfig{})
		manager, _ := w.run(volumemanager.Config{TrustBundles: b})
		show := func(path string, p v1.ClusterTrustBundleProjection) v1.VolumeProjection {
			p.Path, p.Optional = path, new(true)
			return v1.VolumeProjection{ClusterTrustBundle: &p}
		}
		pod := w.projected("web",
			show("name", v1.ClusterTrustBundleProjection{Name: new("one")}),
			show("signer", v1.ClusterTrustBundleProjection{SignerName: new(signer), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}}}))
		if _, err := manager.SetUpPod(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		want := func(when, name, ofSigner string) {
			t.Helper()
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if got := w.file(pod, "name"); got != name {
				t.Errorf("%s, by name: %q", when, got)
			}
			if got := w.file(pod, "signer"); got != ofSigner {
				t.Errorf("%s, by signer: %q", when, got)
			}
		}
		want("none", "", "")
		w.add(bundle("two", signer, "a", "2"))
		want("the signer's first", "", certificates("2"))
		w.add(bundle("one", signer, "a", "1"))
		want("another one", certificates("1"), certificates("1", "2"))
		w.api.Direct(t, http.MethodPut, bundle("two", signer, "b", "2"))
		want("one that is not selected any more", certificates("1"), certificates("1"))
		w.api.Direct(t, http.MethodDelete, bundle("one", signer, "a"))
		want("one is gone", "", "")
		if n := w.asked("watch ClusterTrustBundle"); n != 1 {
			t.Errorf("%d watches", n)
		}
		if err := manager.TearDownPod(t.Context(), pod.UID); err != nil {
			t.Error(err)
		}
	})
}

func TestAWatcherOfBundlesIsSilentOnceStopped(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := w.bundles(clusterhost.TrustBundlesConfig{})
		calls := make(chan struct{}, 100)
		stop := b.WatchTrustBundles(func() { calls <- struct{}{} })
		synctest.Wait()
		if len(calls) != 1 {
			t.Errorf("told %d times that it is known what there is", len(calls))
		}
		w.add(bundle("one", signer, "a", "1"))
		synctest.Wait()
		if len(calls) != 2 {
			t.Errorf("told %d times", len(calls))
		}
		stop()
		stop()
		w.add(bundle("two", signer, "a", "1"))
		synctest.Wait()
		if len(calls) != 2 {
			t.Error("told after stop")
		}
	})
}

// A proxy whose API server is away says 404 of everything.
func TestTrustBundlesBehindAProxyWithoutAServer(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := w.bundles(clusterhost.TrustBundlesConfig{})
		w.add(bundle("one", signer, "a", "1"))
		if _, err := b.GetTrustBundle(t.Context(), "one"); err != nil {
			t.Fatal(err)
		}
		told := make(chan struct{}, 10)
		defer b.WatchTrustBundles(func() { told <- struct{}{} })()
		synctest.Wait() // the watch, too, is at this server
		w.transport.SetHandler(http.NotFoundHandler())
		w.api.DropWatches()
		time.Sleep(10 * time.Second)
		w.transport.SetHandler(w.api)
		w.add(bundle("two", signer, "a", "2"))
		time.Sleep(time.Minute)
		if _, err := b.GetTrustBundle(t.Context(), "two"); err != nil || len(told) != 1 {
			t.Errorf("%v, told %d times", err, len(told))
		}
	})
}

// An API that was restored from a backup is yet to give the version that was seen.
func TestTrustBundlesOfARestoredAPI(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := w.bundles(clusterhost.TrustBundlesConfig{})
		for i := range 50 {
			w.add(bundle(fmt.Sprint("other", i), signer, "b", "2"))
		}
		w.add(bundle("one", signer, "a", "1"))
		if _, err := b.GetTrustBundle(t.Context(), "one"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the watch, too, is at the server from before
		before := w.api
		w.api = clustertest.NewServer()
		w.add(bundle("one", signer, "a", "restored"))
		w.transport.SetHandler(w.api)
		before.DropWatches()
		time.Sleep(time.Minute)
		if got, err := b.GetTrustBundle(t.Context(), "one"); err != nil || got != certificates("restored") {
			t.Errorf("%q, %v", got, err)
		}
	})
}

func TestTrustBundlesCloseEndsWatchers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := clusterhost.NewTrustBundles(w.clientset, clusterhost.TrustBundlesConfig{})
		w.add(bundle("one", signer, "a", "1"))
		release, calls := make(chan struct{}), 0
		b.WatchTrustBundles(func() {
			calls++
			<-release
		})
		synctest.Wait()
		w.add(bundle("two", signer, "a", "2"))
		synctest.Wait()
		closed := make(chan struct{})
		go func() {
			b.Close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed while a watcher runs")
		default:
		}
		close(release)
		<-closed
		if synctest.Wait(); calls != 1 {
			t.Errorf("%d calls", calls)
		}
	})
}

// A pod that comes right after the refusal that another one has met is to hear of
// bundles, too.
func TestTrustBundlesAreWatchedAfterARefusal(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		b := w.bundles(clusterhost.TrustBundlesConfig{})
		w.transport.SetHandler(http.NotFoundHandler())
		if _, err := b.GetTrustBundle(t.Context(), "one"); !errors.Is(err, clusterhost.ErrNotServed) {
			t.Fatal(err)
		}
		told := make(chan struct{}, 10)
		defer b.WatchTrustBundles(func() { told <- struct{}{} })()
		began := time.Now()
		if _, err := b.GetTrustBundle(t.Context(), "one"); !errors.Is(err, clusterhost.ErrNotServed) || time.Since(began) > 0 {
			t.Errorf("%v after %s", err, time.Since(began))
		}
		w.transport.SetHandler(w.api)
		w.add(bundle("one", signer, "a", "1"))
		time.Sleep(time.Minute)
		if len(told) != 1 {
			t.Errorf("told %d times", len(told))
		}
	})
}
