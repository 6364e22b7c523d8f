package election_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/podvol/podvol/util/testenv/apiserver"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/objects/cluster/election"
)

// rival campaigns on a real server, in time as it passes.
type rival struct {
	name   string
	cancel context.CancelFunc
	ended  chan error

	mu  sync.Mutex
	cut bool // nothing of it reaches the server
}

func (r *rival) setCut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
}

// network is what a rival sends through.
type network struct {
	*rival
	next http.RoundTripper
}

func (n network) RoundTrip(request *http.Request) (*http.Response, error) {
	n.mu.Lock()
	cut := n.cut
	n.mu.Unlock()
	if cut {
		return nil, clustertest.ErrUnreachable
	}
	return n.next.RoundTrip(request)
}

// ring is where rivals meet, and where it is seen if two lead.
type ring struct {
	server *apiserver.Server

	mu      sync.Mutex
	leading []string
	changed chan struct{} // closed when leading changes
}

func (r *ring) change(f func([]string) []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leading = f(r.leading)
	close(r.changed)
	r.changed = make(chan struct{})
}

// await waits until somebody leads whom wanted names, and returns who; without
// names: until nobody leads.
func (r *ring) await(t *testing.T, within time.Duration, wanted ...string) string {
	t.Helper()
	for late := time.After(within); ; {
		r.mu.Lock()
		leading, changed := slices.Clone(r.leading), r.changed
		r.mu.Unlock()
		if len(leading)+len(wanted) == 0 {
			return ""
		}
		for _, name := range leading {
			if slices.Contains(wanted, name) {
				return name
			}
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("%q lead after %s, want one of %q", leading, within, wanted)
		}
	}
}

// clientset is what a rival sends its requests by.
func clientset(t *testing.T, s *apiserver.Server, v *rival) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.RESTConfigFromKubeConfig(s.Admin(t))
	if err != nil {
		t.Fatal(err)
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return network{v, next} })
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.CloseIdleConnections)
	set, err := kubernetes.NewForConfigAndClient(config, client)
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func (r *ring) enter(t *testing.T, name string) *rival {
	t.Helper()
	v := &rival{name: name, ended: make(chan error, 1)}
	set := clientset(t, r.server, v)
	ctx, cancel := context.WithCancel(context.Background())
	v.cancel = cancel
	go func() {
		v.ended <- election.Run(ctx, election.Config{Client: set.CoordinationV1(), Namespace: "kube-system", Name: "podvol", Identity: name,
			LeaseDuration: 5 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: time.Second}, func(ctx context.Context) error {
			r.change(func(leading []string) []string {
				if len(leading) > 0 {
					t.Errorf("%s leads, and so do %q", name, leading)
				}
				return append(leading, name)
			})
			<-ctx.Done()
			r.change(func(leading []string) []string {
				return slices.DeleteFunc(leading, func(n string) bool { return n == name })
			})
			return context.Cause(ctx)
		})
	}()
	return v
}

// holderOf asks the server.
func holderOf(t *testing.T, set kubernetes.Interface) (name string, transitions int32) {
	t.Helper()
	lease, err := set.CoordinationV1().Leases("kube-system").Get(t.Context(), "podvol", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if lease.Spec.HolderIdentity != nil {
		name = *lease.Spec.HolderIdentity
	}
	return name, *lease.Spec.LeaseTransitions
}

// Whoever leads is cut off, killed with its lease, or told to end, and the server is
// killed and started again: never do two lead.
func TestRivalsOnARealAPIServer(t *testing.T) {
	apiserver.Run(t, apiserver.Config{}, func(t *testing.T, s *apiserver.Server) {
		for _, n := range []int{2, 3} {
			t.Run(fmt.Sprint(n, " rivals"), func(t *testing.T) { campaignOn(t, s, n) })
		}
	})
}

func campaignOn(t *testing.T, s *apiserver.Server, n int) {
	r := &ring{server: s, changed: make(chan struct{})}
	rivals := make(map[string]*rival)
	var names []string
	for i := range n {
		name := fmt.Sprint("r", i)
		names = append(names, name)
		rivals[name] = r.enter(t, name)
	}
	end := sync.OnceFunc(func() {
		for _, v := range rivals {
			v.cancel()
		}
		for _, v := range rivals {
			if err := <-v.ended; err != nil {
				t.Errorf("%s: Run: %v", v.name, err)
			}
		}
	})
	defer end()
	others := func(not string) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == not })
	}

	first := r.await(t, time.Minute, names...)
	rivals[first].setCut(true)
	second := r.await(t, time.Minute, others(first)...)
	rivals[first].setCut(false)

	s.Kill(t)
	r.await(t, time.Minute)
	s.Start(t)
	third := r.await(t, time.Minute, names...)

	rivals[third].cancel() // it gives the lease up
	if err := <-rivals[third].ended; err != nil {
		t.Errorf("%s: Run: %v", third, err)
	}
	rivals[third].ended <- nil
	ended := time.Now()
	r.await(t, time.Minute, others(third)...)
	t.Logf("led: %s, then %s; after an outage %s; its successor came %s after it had ended", first, second, third, time.Since(ended).Round(time.Millisecond))
	end()

	if holder, transitions := holderOf(t, clientset(t, s, new(rival))); holder != "" || transitions < 2 {
		t.Errorf("%q holds the lease in the end, after %d transitions", holder, transitions)
	}
}
