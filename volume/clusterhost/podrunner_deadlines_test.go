package clusterhost_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

func TestAPodWhoseNodeIsLost(t *testing.T) {
	t.Run("it runs", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.pod.Spec.NodeName = "node9"
			r.pod.Finalizers = []string{"example.com/node"}
			r.begin(t.Context())
			r.starts()
			time.Sleep(6 * time.Minute)
			r.wantRunning()
			time.Sleep(2 * time.Minute)
			lost := r.wantEnd()
			if !errors.Is(lost, clusterhost.ErrOverduePod) || !strings.Contains(lost.Error(), `past its deadline and has not ended; what it does on node "node9"`) || r.there() == nil || r.there().DeletionTimestamp == nil {
				t.Errorf("%v", lost)
			}
			r.begin(t.Context())
			time.Sleep(8 * time.Minute) // by the clock of who waits now
			if !errors.Is(r.wantEnd(), clusterhost.ErrOverduePod) {
				t.Error("not overdue any more")
			}
		})
	})
	t.Run("it never starts", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.begin(t.Context())
			time.Sleep(8 * time.Minute)
			lost := r.wantEnd()
			if !errors.Is(lost, clusterhost.ErrOverduePod) || !strings.Contains(lost.Error(), "was not started in time, and is removed") || r.there() != nil {
				t.Errorf("%v", lost)
			}
		})
	})
}

func TestAPodWhoseNodeHasAnotherClock(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		r.begin(t.Context())
		r.is(v1.PodRunning, func(p *v1.Pod) { p.Status.StartTime = new(metav1.NewTime(time.Now().Add(-time.Hour))) })
		time.Sleep(6 * time.Minute)
		r.wantRunning()
		r.is(v1.PodSucceeded, nil)
		r.wantSuccess()
	})
}

// Nothing is known of a pod while the API does not answer, not even whether it is
// past its deadline.
func TestAPodThroughAnOutage(t *testing.T) {
	for _, outage := range []time.Duration{2 * time.Minute, time.Hour} {
		t.Run(outage.String(), func(t *testing.T) {
			inRun(t, func(t *testing.T, r *recycler) {
				r.begin(t.Context())
				r.starts()
				r.transport.SetDown(clustertest.ErrUnreachable)
				r.api.DropWatches()
				r.is(v1.PodSucceeded, nil)
				time.Sleep(outage)
				r.wantRunning()
				r.transport.SetDown(nil)
				time.Sleep(time.Minute)
				r.wantSuccess()
			})
		})
	}
}

func TestAPodThatMayNotBeWatched(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		r.api.Refuse(func(q *http.Request) *metav1.Status {
			a, _ := clustertest.ParseRequest(q)
			if a.Kind.Kind == "Pod" && (a.Verb == "list" || a.Verb == "watch") {
				return clustertest.Status(http.StatusForbidden, metav1.StatusReasonForbidden, a, "no role for that")
			}
			return nil
		})
		r.begin(t.Context())
		time.Sleep(6 * time.Minute)
		r.starts()
		time.Sleep(4 * time.Minute)
		r.wantRunning()
		r.is(v1.PodSucceeded, nil)
		time.Sleep(4 * time.Second)
		r.wantSuccess()
		if len(r.said) != 1 || !strings.HasPrefix(r.said[0], "Warning ") || !strings.Contains(r.said[0], "no role for that") {
			t.Errorf("recorded %q", r.said)
		}
	})
}
