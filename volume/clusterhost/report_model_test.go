package clusterhost_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// unreliable loses reports and answers: a report can fail, or take effect now or
// later although it is said to have failed.
type unreliable struct {
	http.RoundTripper
	mu   sync.Mutex
	rand *rand.Rand // nil: it is reliable
	late sync.WaitGroup
}

func (u *unreliable) fate() (lost, lands bool, after time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.rand == nil || u.rand.IntN(3) > 0 {
		return false, true, 0
	}
	return true, u.rand.IntN(3) > 0, time.Duration(u.rand.Int64N(int64(50 * time.Second)))
}

func (u *unreliable) RoundTrip(r *http.Request) (*http.Response, error) {
	a, _ := clustertest.ParseRequest(r)
	if a.Verb != "patch" {
		return u.RoundTripper.RoundTrip(r)
	}
	lost, lands, after := u.fate()
	if !lost {
		return u.RoundTripper.RoundTrip(r)
	}
	if lands {
		body, _ := io.ReadAll(r.Body)
		u.late.Go(func() {
			time.Sleep(after)
			again, err := http.NewRequest(r.Method, r.URL.String(), bytes.NewReader(body))
			if err != nil {
				return
			}
			again.Header = r.Header
			if response, err := u.RoundTripper.RoundTrip(again); err == nil {
				response.Body.Close()
			}
		})
	}
	return nil, clustertest.ErrUnreachable
}

func (u *unreliable) heal() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.rand = nil
}

// Whatever happens to reports: no disk is mounted that the status does not list in use
// and attached, and a controller that goes by the status never detaches one that is
// mounted. Once all is well, everything that is wanted is mounted.
func TestNoDetachWindow(t *testing.T) {
	for seed := range uint64(25) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				random := rand.New(rand.NewPCG(seed, 0))
				network := &unreliable{RoundTripper: w.transport, rand: rand.New(rand.NewPCG(seed, 1))}
				w.clientset = clustertest.Clientset(t, "http://api", network)
				n := w.node()
				pods := []*v1.Pod{diskPod("one", "a"), diskPod("two", "a", "b"), diskPod("three", "c")}
				wanted := make(map[*v1.Pod]bool)
				for step := range 60 {
					n.randomStep(random, pods, wanted, step)
					if random.IntN(2) == 0 {
						time.Sleep(time.Duration(random.Int64N(int64(20 * time.Second))))
					}
					if random.IntN(2) == 0 {
						synctest.Wait()
					}
				}
				network.heal()
				for _, pod := range pods {
					n.declare(pod)
				}
				for _, disk := range []string{"a", "b", "c"} {
					n.ensureAttached(disk)
				}
				time.Sleep(10 * time.Minute)
				n.wantInUse("a", "b", "c")
				for _, pod := range pods {
					if !n.isMounted(pod) {
						t.Errorf("pod %s is not mounted", pod.Name)
					}
				}
				network.late.Wait()
				n.tearDown(pods...)
				n.wantInUse()
			})
		})
	}
}

// randomStep does something that a node, a controller or somebody else does.
func (n *node) randomStep(random *rand.Rand, pods []*v1.Pod, wanted map[*v1.Pod]bool, step int) {
	pod, disk := pods[random.IntN(len(pods))], string(rune('a'+random.IntN(3)))
	switch what := random.IntN(20); {
	case what < 5:
		if err := n.manager.PutPod(pod); err != nil {
			n.t.Error(err)
		}
		wanted[pod] = true
	case what < 9:
		n.manager.DeletePod(pod.UID)
		delete(wanted, pod)
	case what < 13:
		n.ensureAttached(disk)
	case what < 17:
		n.detach(disk)
	case what < 18:
		n.change(func(s *v1.NodeStatus) { s.NodeInfo.BootID = fmt.Sprint("step ", step) })
	case what < 19:
		n.api.DropWatches()
	default:
		n.stop()
		n.start()
		for pod := range wanted {
			if err := n.manager.PutPod(pod); err != nil {
				n.t.Error(err)
			}
		}
		n.manager.PodsComplete()
	}
}

func (n *node) ensureAttached(disk string) {
	n.change(func(s *v1.NodeStatus) {
		if !slices.ContainsFunc(s.VolumesAttached, func(a v1.AttachedVolume) bool { return a.Name == unique(disk) }) {
			s.VolumesAttached = append(s.VolumesAttached, v1.AttachedVolume{Name: unique(disk), DevicePath: "/dev/" + disk})
		}
	})
}
