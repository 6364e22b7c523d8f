package cluster_test

import (
	"net/http"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/objects/objectstest"
)

// hurdle stands between a client and a server.
type hurdle struct {
	next http.RoundTripper

	mu     sync.Mutex
	before func(*http.Request) error // nil: nothing is in the way
}

// is puts before in the way of every request that is sent from now on.
func (h *hurdle) is(before func(*http.Request) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = before
}

func (h *hurdle) RoundTrip(r *http.Request) (*http.Response, error) {
	h.mu.Lock()
	before := h.before
	h.mu.Unlock()
	if before != nil {
		if err := before(r); err != nil {
			return nil, err
		}
	}
	return h.next.RoundTrip(r)
}

// as returns a clientset of a user of a real server, and what is in its way.
func as(t *testing.T, kubeconfig []byte) (kubernetes.Interface, *hurdle) {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	config.ContentType, config.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf,application/json" // as a kubelet does
	h := new(hurdle)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { h.next = next; return h })
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	set, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		t.Fatal(err)
	}
	return set, h
}

// withNamespaces returns an administrator's clientset, and makes the namespaces
// that tests use.
func withNamespaces(t *testing.T, s *apiserver.Server) kubernetes.Interface {
	t.Helper()
	admin, _ := as(t, s.Admin(t))
	version, err := admin.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the API server is %s", version)
	for _, name := range []string{"ops", "dev"} {
		if _, err := admin.CoreV1().Namespaces().Create(t.Context(), &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return admin
}

func TestSuiteOnARealAPIServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		withNamespaces(t, s)
		for way, config := range realWays {
			t.Run(way, func(t *testing.T) {
				objectstest.Suite(t, func(t *testing.T) objectstest.Fixture { return realFixture(t, s, config) })
			})
		}
	})
}

func realFixture(t *testing.T, s *apiserver.Server, config cluster.Config) objectstest.Fixture {
	set, h := as(t, s.Admin(t))
	f := fixture(connect(t, set, config), config.Shared)
	f.Break = func(*testing.T) (restore func()) {
		h.is(func(*http.Request) error { return clustertest.ErrUnreachable })
		return func() { h.is(nil) }
	}
	f.Unsynced = func(t *testing.T) (objects.Source, func()) {
		set, h := as(t, s.Admin(t))
		held := make(chan struct{})
		h.is(func(r *http.Request) error {
			select {
			case <-held:
				return nil
			case <-r.Context().Done():
				return r.Context().Err()
			}
		})
		config.Wait = time.Millisecond
		c, start := prepare(t, set, config)
		start()
		return c, sync.OnceFunc(func() { close(held) })
	}
	return f
}
