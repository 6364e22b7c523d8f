package cluster_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/mount"
	"github.com/podvol/podvol/mount/fakemount"
	"github.com/podvol/podvol/mount/table"
	"github.com/podvol/podvol/util/fault"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// outages are the ways in which an API can be of no use.
var outages = map[string]func(n *node) (end func()){
	"unreachable": func(n *node) func() {
		return n.transport.Inject(fault.Fault[clustertest.Request]{Err: clustertest.ErrUnreachable})
	},
	"silent": func(n *node) func() {
		// What was asked then is never answered.
		return n.transport.Inject(fault.Fault[clustertest.Request]{Release: make(chan struct{})})
	},
	"busy": func(n *node) func() {
		return n.refuse(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
			Details: &metav1.StatusDetails{RetryAfterSeconds: 20}})
	},
	"broken": func(n *node) func() {
		return n.refuse(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: metav1.StatusReasonInternalError})
	},
	"a proxy that knows nothing": func(n *node) func() {
		n.transport.SetHandler(http.NotFoundHandler())
		return func() { n.transport.SetHandler(n.api) }
	},
}

func (n *node) refuse(status *metav1.Status) (end func()) {
	n.api.Refuse(func(*http.Request) *metav1.Status { return status })
	return func() { n.api.Refuse(nil) }
}

// identities are how a node reads: what the Node authorizer lets it, or claims and
// volumes from informers.
var identities = map[string]cluster.Config{
	"keyed":  {Shared: []string{}},
	"shared": {},
}

// population is a node's pods in an outage: one whose objects change meanwhile, one
// whose objects are deleted, and one that is deleted itself.
type population struct{ changed, orphaned, deleted *v1.Pod }

func (p population) all() []*v1.Pod { return []*v1.Pod{p.changed, p.orphaned, p.deleted} }

// volumesEach is how many volumes each of them has.
const volumesEach = 4

func (n *node) populate() population {
	pod := func(name string) *v1.Pod {
		claim, pv := boundPair("claim-"+name, "pv-"+name)
		n.create(configMapOf("config-"+name, "before"), secret("secret-"+name, "before"))
		n.createBound(claim, pv)
		return podOf(name, configMapVolume("config", "config-"+name), secretVolume("secret", "secret-"+name), claimVolume("data", "claim-"+name), accessVolume())
	}
	n.create(rootCA(), &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "default"}})
	return population{pod("changed"), pod("orphaned"), pod("deleted")}
}

// wantContent checks what a pod finds in its volumes.
func (n *node) wantContent(pod *v1.Pod, config, secret string) {
	n.t.Helper()
	for what, got := range map[string][2]string{
		"config map":  {n.read(pod, "configmap", "config", "key"), config},
		"secret":      {n.read(pod, "secret", "secret", "key"), secret},
		"token":       {n.read(pod, "projected", "kube-api-access", "token"), "default of " + string(pod.UID)},
		"certificate": {n.read(pod, "projected", "kube-api-access", "ca.crt"), "certificate"},
	} {
		if got[0] != got[1] {
			n.t.Errorf("pod %s finds %q for its %s, want %q", pod.Name, got[0], what, got[1])
		}
	}
}

// Ten minutes without the API, with a restart of the node in the middle. Nothing is
// unmounted and no running pod fails; afterwards everything comes to be as it is
// wanted by then.
func TestNodeLivesThroughAnOutage(t *testing.T) {
	for identity, config := range identities {
		for outage, begin := range outages {
			t.Run(identity+", "+outage, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					n := newNode(t, config, nil)
					p := n.populate()
					n.start()
					defer func() { n.stop() }()
					n.put(p.all()...)
					n.wantMounted(p.all()...)
					n.PodsComplete()
					n.outage(begin, p, func() {
						n.change(configMapOf("config-changed", "after"), secret("secret-changed", "after"))
						claim, pv := boundPair("claim-orphaned", "pv-orphaned")
						n.delete(configMapOf("config-orphaned", ""), secret("secret-orphaned", ""), claim, pv)
					})
					time.Sleep(7 * time.Minute) // five until a request is given up that is never answered
					n.wantAllMounted(volumesEach * 3)
					n.wantContent(p.changed, "after", "after")
					n.wantContent(p.orphaned, "before", "before") // it runs with what it has

					// The agent hears only now that a pod was deleted.
					n.PodsComplete()
					n.tearDown(p.deleted)
					for _, row := range n.Explain() {
						if row.PodUID == p.deleted.UID {
							t.Errorf("volume %s of a deleted pod is %s", row.Volume, row.State)
						}
					}
					n.wantQuiet()
				})
			})
		}
	}
}

// outage has the API be of no use for ten minutes. In the middle the node starts
// anew, and its agent does not know all of its pods yet.
func (n *node) outage(begin func(*node) func(), p population, meanwhile func()) {
	n.t.Helper()
	n.events.taken()
	n.mounter.(*fakemount.Mounter).ResetCalls()
	n.transport.ResetCalls()
	end := begin(n)
	n.api.DropWatches()
	time.Sleep(5 * time.Minute)
	n.wantAllMounted(volumesEach * 3)
	if events := n.events.taken(); len(events) > 0 {
		n.t.Errorf("events of what is mounted and known: %q", events)
	}
	n.wantBounded(5 * time.Minute)
	n.stop()
	meanwhile()
	n.start()
	n.put(p.changed, p.orphaned) // from a checkpoint; the third is not known yet
	time.Sleep(5 * time.Minute)
	n.wantAllMounted(volumesEach * 3)
	for _, pod := range p.all() {
		n.wantContent(pod, "before", "before")
	}
	n.wantBounded(5 * time.Minute)
	if events := n.events.taken(); len(events) > 30*volumesEach*2 {
		n.t.Errorf("%d events in five minutes: %q", len(events), events[:10])
	}
	end()
}

// wantBounded fails if an object was asked for more often than back-off allows.
func (n *node) wantBounded(within time.Duration) {
	n.t.Helper()
	asked := make(map[string]int)
	for _, call := range n.transport.Calls() {
		asked[strings.TrimSpace(call.Ref().String())]++
	}
	n.transport.ResetCalls()
	for what, times := range asked {
		if limit := 12 * int(within/time.Minute); times > limit {
			n.t.Errorf("%s was asked for %d times within %v", what, times, within)
		}
	}
}

// wantQuiet fails if anything is done without need.
func (n *node) wantQuiet() {
	n.t.Helper()
	synctest.Wait()
	n.mounter.(*fakemount.Mounter).ResetCalls()
	time.Sleep(10 * time.Minute)
	if calls := n.mounter.(*fakemount.Mounter).Calls(); slices.ContainsFunc(calls, func(c fakemount.Call) bool { return c.Op == mount.OpMount }) {
		n.t.Errorf("mounted in quiet times: %v", calls)
	}
}

// An API that was restored from a backup has other objects, and versions that it has
// given before. What runs keeps what it has, or gets what there is now.
func TestNodeOfARestoredAPI(t *testing.T) {
	for name, want := range map[string]string{"empty": "before", "older": "restored"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, identities["keyed"], nil)
				p := n.populate()
				for i := range 50 {
					n.create(configMapOf(fmt.Sprintf("version-%d", i), ""))
				}
				n.start()
				defer n.stop()
				n.put(p.all()...)
				n.wantMounted(p.all()...)
				n.mounter.(*fakemount.Mounter).ResetCalls()
				time.Sleep(time.Minute) // a watch that broke at once would be listed anew by client-go

				before := n.api
				n.api = clustertest.NewServer()
				if name == "older" {
					for _, pod := range p.all() {
						claim, pv := boundPair("claim-"+pod.Name, "pv-"+pod.Name)
						n.create(configMapOf("config-"+pod.Name, "restored"), secret("secret-"+pod.Name, "restored"))
						n.createBound(claim, pv)
					}
					n.create(rootCA())
				}
				n.transport.SetHandler(n.api)
				before.DropWatches()
				time.Sleep(3 * time.Minute)
				n.wantAllMounted(volumesEach * 3)
				for _, pod := range p.all() {
					n.wantContent(pod, want, want)
				}
			})
		})
	}
}

// What runs keeps its volumes when their objects are deleted, also through a restart,
// and is not written to about it all the time.
func TestNodeKeepsVolumesWhoseObjectsAreDeleted(t *testing.T) {
	for identity, config := range identities {
		t.Run(identity, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNode(t, config, nil)
				p := n.populate()
				n.start()
				defer func() { n.stop() }()
				n.put(p.all()...)
				n.wantMounted(p.all()...)
				n.mounter.(*fakemount.Mounter).ResetCalls()
				claim, pv := boundPair("claim-orphaned", "pv-orphaned")
				n.delete(configMapOf("config-orphaned", ""), secret("secret-orphaned", ""), claim, pv)
				for range 2 {
					time.Sleep(30 * time.Minute)
					n.wantAllMounted(volumesEach * 3)
					n.wantContent(p.orphaned, "before", "before")
					if events := n.events.taken(); len(events) > 3*30 {
						t.Errorf("%d events in half an hour: %q", len(events), events[:10])
					}
					n.stop()
					n.start()
					n.put(p.all()...)
					n.PodsComplete()
				}
				n.tearDown(p.all()...)
				n.wantNothing()
			})
		})
	}
}

// Objects from the API do not say of what kind they are. What a node has recorded of
// them is all that the next process needs to undo it.
func TestNodeReadsItsRecordsWithoutTheAPI(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, identities["keyed"], nil)
		p := n.populate()
		n.start()
		n.put(p.all()...)
		n.wantMounted(p.all()...)
		pv, err := objects.Get[*v1.PersistentVolume](t.Context(), n.client, volume.NewObjectRef("PersistentVolume", "", "pv-changed"))
		if err != nil || pv.Kind != "" {
			t.Errorf("the volume says that it is a %q, %v", pv.Kind, err)
		}
		n.stop()
		n.mounter.(*fakemount.Mounter).ResetCalls()
		n.transport.SetDown(clustertest.ErrUnreachable)
		n.start()
		defer n.stop()
		n.wantAllMounted(volumesEach * 3)
		for _, row := range n.Explain() {
			if row.Volume == "data" && (row.PersistentVolume != "pv-"+row.Pod.Name || row.Claim.Name != "claim-"+row.Pod.Name) {
				t.Errorf("pod %s has volume %q of claim %q", row.Pod, row.PersistentVolume, row.Claim)
			}
		}
		n.tearDown(p.all()...)
		n.wantNothing()
	})
}

// wantNothing fails if a volume is left.
func (n *node) wantNothing() {
	n.t.Helper()
	if rows := n.Explain(); len(rows) > 0 {
		n.t.Errorf("%d volumes are left: %v", len(rows), rows)
	}
	mounts := table.Of(n.mounter)
	entries, err := mounts.All()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Target, n.root) {
			n.t.Errorf("%s is still mounted", e.Target)
		}
	}
}
