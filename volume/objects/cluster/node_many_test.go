package cluster_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/testenv/testtool"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects/cluster"
)

// crowd is many pods that use few objects: every pod has the config map "shared",
// the certificate that all of a namespace have, a token, and one of the others.
type crowd struct {
	pods    []*v1.Pod
	objects []metav1.Object
}

// others is how many objects are used beside the two that every pod uses.
const others = 48

func newCrowd(n int) *crowd {
	c := &crowd{objects: []metav1.Object{configMapOf("shared", "first"), rootCA()}}
	for i := range others / 2 {
		c.objects = append(c.objects, secret(fmt.Sprintf("secret-%d", i), "first"), configMapOf(fmt.Sprintf("config-%d", i), "first"))
	}
	for i := range n {
		own := configMapVolume("own", fmt.Sprintf("config-%d", i/2%(others/2)))
		if i%2 == 0 {
			own = secretVolume("own", fmt.Sprintf("secret-%d", i/2%(others/2)))
		}
		c.pods = append(c.pods, podOf(fmt.Sprintf("pod-%d", i), configMapVolume("shared", "shared"), own, accessVolume()))
	}
	return c
}

// refs are the objects that the first n pods use.
func (c *crowd) refs(n int) []volume.ObjectRef {
	used := make(map[volume.ObjectRef]bool)
	for _, pod := range c.pods[:n] {
		for _, v := range pod.Spec.Volumes {
			switch {
			case v.ConfigMap != nil:
				used[ref(v.ConfigMap.Name)] = true
			case v.Secret != nil:
				used[volume.NewObjectRef("Secret", "ops", v.Secret.SecretName)] = true
			case v.Projected != nil:
				used[ref("kube-root-ca.crt")] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(used), func(a, b volume.ObjectRef) int { return cmp.Compare(a.String(), b.String()) })
}

// tokenRequest is what the token of a pod is asked for by, which is the pod's own.
const tokenRequest = "get ServiceAccount ops/default"

// wantAsked checks which requests were made since the last time, and how many for
// tokens.
func (n *node) wantAsked(tokens int, want ...string) {
	n.t.Helper()
	var asked []string
	forTokens := 0
	for _, request := range n.api.Asked() {
		if request == tokenRequest {
			forTokens++
		} else {
			asked = append(asked, request)
		}
	}
	slices.Sort(asked)
	slices.Sort(want)
	if !slices.Equal(asked, want) {
		n.t.Errorf("asked %d times: %q\nwant %d: %q", len(asked), asked, len(want), want)
	}
	if forTokens != tokens {
		n.t.Errorf("asked for tokens %d times, want %d", forTokens, tokens)
	}
}

func (n *node) wantWatched(want []volume.ObjectRef) {
	n.t.Helper()
	synctest.Wait() // one counts as open after its first events
	if got := n.api.Watched(); !slices.Equal(got, want) {
		n.t.Errorf("%d watches are open: %v\nwant %d: %v", len(got), got, len(want), want)
	}
}

func watchesOf(refs []volume.ObjectRef) (requests []string) {
	for _, r := range refs {
		requests = append(requests, "watch "+r.String())
	}
	return requests
}

// However many pods use an object, it costs one watch, which is also what gets it;
// an update costs none, nor does time but for renewed watches and tokens.
func TestAThousandPodsAskForEachObjectOnce(t *testing.T) {
	n := 1000
	if testtool.Shortened() {
		n = 200
	}
	synctest.Test(t, func(t *testing.T) {
		node := newNode(t, cluster.Config{Shared: []string{}}, nil)
		c := newCrowd(n)
		node.create(c.objects...)
		node.create(&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "default"}})
		node.start()
		defer node.stop()
		node.put(c.pods...)
		node.wantMounted(c.pods...)
		node.wantWatched(c.refs(n))
		node.wantAsked(n, watchesOf(c.refs(n))...)
		if want := others + 2; len(c.refs(n)) != want {
			t.Fatalf("the pods use %d objects, not %d", len(c.refs(n)), want)
		}

		node.change(configMapOf("shared", "second"))
		synctest.Wait()
		for _, pod := range c.pods {
			if got := node.read(pod, "configmap", "shared", "key"); got != "second" {
				t.Fatalf("pod %s has %q after the update", pod.Name, got)
			}
		}
		node.wantAsked(0)

		// Watches last 5 to 10 minutes, then they go on from where they were.
		time.Sleep(40 * time.Minute)
		synctest.Wait() // watches end at whole seconds: one may at this very moment
		asked := node.api.Asked()
		if len(asked) < 3*len(c.refs(n)) || len(asked) > 8*len(c.refs(n)) {
			t.Errorf("asked %d times within 40 minutes for %d objects", len(asked), len(c.refs(n)))
		}
		for _, request := range asked {
			if request == tokenRequest || !slices.Contains(watchesOf(c.refs(n)), request) {
				t.Fatalf("asked %q", request)
			}
		}

		// What is left of the pods decides what is left of the watches.
		for _, left := range []int{100, 30, 1, 0} {
			node.tearDown(c.pods[left:]...)
			c.pods = c.pods[:left]
			node.wantWatched(c.refs(left))
		}
		node.wantAsked(0)
		time.Sleep(time.Hour)
		node.wantAsked(0)
		if events := node.events.taken(); len(events) > 0 {
			t.Errorf("%d events: %q", len(events), events[:min(len(events), 10)])
		}
	})
}
