package clusterhost_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
)

// recycler is a pod that empties a volume, and what became of its run.
type recycler struct {
	*world
	runner *clusterhost.PodRunner
	pod    *v1.Pod
	result chan error

	mu    sync.Mutex
	may   error
	asked int
	said  []string
}

func (w *world) recycler() *recycler {
	deadline := int64(300)
	return &recycler{world: w, runner: clusterhost.NewPodRunner(w.clientset, clusterhost.PodRunnerConfig{}), result: make(chan error, 1), pod: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "recycler-for-pv1", Labels: map[string]string{volume.RecyclerLabel: "release-1"}},
		Spec:       v1.PodSpec{ActiveDeadlineSeconds: &deadline, Containers: []v1.Container{{Name: "recycler", Image: "busybox"}}}}}
}

func (r *recycler) mayRun(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	return r.may
}

func (r *recycler) forbid(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.may = err
}

func (r *recycler) record(eventType, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.said = append(r.said, eventType+" "+message)
}

// begin runs the pod in the background, until a goroutine waits for it.
func (r *recycler) begin(ctx context.Context) {
	go func() { r.result <- r.runner.RunPod(ctx, r.pod, r.mayRun, r.record) }()
	synctest.Wait()
}

// there returns the pod as the API has it; nil: it has none.
func (r *recycler) there() *v1.Pod {
	pod, err := objects.Get[*v1.Pod](context.Background(), r.api.Store(), volume.NewObjectRef("Pod", "ops", "recycler-for-pv1"))
	if err != nil {
		return nil
	}
	return pod
}

// is gives the pod a status, as its node does.
func (r *recycler) is(phase v1.PodPhase, change func(*v1.Pod)) {
	r.t.Helper()
	r.set(phase, change)
	synctest.Wait()
}

func (r *recycler) set(phase v1.PodPhase, change func(*v1.Pod)) {
	r.t.Helper()
	pod := r.there().DeepCopy()
	pod.Status.Phase = phase
	if change != nil {
		change(pod)
	}
	if err := r.api.DirectStatus(context.Background(), pod); err != nil {
		r.t.Error(err)
	}
}

// wantEnd fails unless RunPod has returned by now.
func (r *recycler) wantEnd() error {
	r.t.Helper()
	synctest.Wait()
	select {
	case err := <-r.result:
		return err
	default:
		r.t.Fatal("RunPod has not returned")
		return nil
	}
}

func (r *recycler) wantRunning() {
	r.t.Helper()
	synctest.Wait()
	select {
	case err := <-r.result:
		r.t.Fatalf("RunPod has returned %v", err)
	default:
	}
}

func inRun(t *testing.T, f func(t *testing.T, r *recycler)) {
	inWorld(t, func(t *testing.T, w *world) { f(t, w.recycler()) })
}

func TestAPodIsRunToItsEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		phase  v1.PodPhase
		reason string
		failed bool
	}{
		"succeeded":         {v1.PodSucceeded, "", false},
		"failed":            {v1.PodFailed, "Error", true},
		"past its deadline": {v1.PodFailed, "DeadlineExceeded", true},
	} {
		t.Run(name, func(t *testing.T) {
			inRun(t, func(t *testing.T, r *recycler) {
				r.begin(t.Context())
				r.event("Pulling", "image")
				r.is(v1.PodRunning, nil)
				time.Sleep(10 * time.Second)
				r.wantRunning()
				r.is(tc.phase, func(p *v1.Pod) { p.Status.Reason = tc.reason })
				err := r.wantEnd()
				failure, failed := errors.AsType[*volume.PodFailedError](err)
				if failed != tc.failed || failed && failure.Reason != tc.reason || !failed && err != nil {
					t.Errorf("%v", err)
				}
				if r.there() != nil {
					t.Error("it is still there")
				}
				if want := []string{`Normal pod "ops/recycler-for-pv1": Pulling: image`}; !slices.Equal(r.said, want) {
					t.Errorf("recorded %q", r.said)
				}
				if r.asked < 4 || r.asked > 6 {
					t.Errorf("asked %d times in 10 seconds whether it may run", r.asked)
				}
			})
		})
	}
}

// event has the pod's node tell something.
func (r *recycler) event(reason, message string) {
	r.t.Helper()
	pod := r.there()
	_, err := r.clientset.CoreV1().Events("ops").Create(r.t.Context(), &v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "e-" + strings.ToLower(reason)},
		InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "ops", Name: pod.Name, UID: pod.UID}, Type: v1.EventTypeNormal, Reason: reason, Message: message}, metav1.CreateOptions{})
	if err != nil {
		r.t.Error(err)
	}
	synctest.Wait()
}

func TestALeftoverIsTakenUp(t *testing.T) {
	for _, phase := range []v1.PodPhase{v1.PodPending, v1.PodRunning} {
		t.Run("one that is "+string(phase), func(t *testing.T) {
			inRun(t, func(t *testing.T, r *recycler) {
				r.leftover(phase)
				uid := r.there().UID
				r.begin(t.Context())
				if r.wantRunning(); r.there().UID != uid {
					t.Error("it was not waited for")
				}
				r.is(v1.PodSucceeded, nil)
				r.wantAnother(uid)
				r.is(v1.PodSucceeded, nil)
				if err := r.wantEnd(); err != nil || r.there() != nil {
					t.Errorf("%v, still there %v", err, r.there() != nil)
				}
			})
		})
	}
	// Anybody who may make pods there can make one of that name and label, and give it
	// any end.
	for _, phase := range []v1.PodPhase{v1.PodSucceeded, v1.PodFailed} {
		t.Run("one that has "+string(phase), func(t *testing.T) {
			inRun(t, func(t *testing.T, r *recycler) {
				r.leftover(phase)
				uid := r.there().UID
				r.begin(t.Context())
				r.wantAnother(uid)
				r.is(v1.PodFailed, nil)
				if _, failed := errors.AsType[*volume.PodFailedError](r.wantEnd()); !failed || r.there() != nil {
					t.Errorf("failed %v, still there %v", failed, r.there() != nil)
				}
			})
		})
	}
	t.Run("one that is on its way out", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.pod.Finalizers = []string{"example.com/node"} // as the node does it by a grace period
			r.leftover(v1.PodRunning)
			r.api.Direct(t, http.MethodDelete, r.there())
			uid := r.there().UID
			r.pod.Finalizers = nil
			r.begin(t.Context())
			r.wantRunning()
			r.is(v1.PodFailed, nil) // since its containers were killed
			r.wantRunning()
			gone := r.there().DeepCopy()
			gone.Finalizers = nil
			r.api.Direct(t, http.MethodPut, gone)
			r.wantAnother(uid)
			r.is(v1.PodSucceeded, nil)
			if err := r.wantEnd(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("somebody else's", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.leftover(v1.PodSucceeded)
			r.pod.Labels = map[string]string{volume.RecyclerLabel: "release-2"}
			r.begin(t.Context())
			foreign, ok := errors.AsType[*clusterhost.ForeignPodError](r.wantEnd())
			if !ok || foreign.Label != "release-1" || r.there() == nil {
				t.Errorf("%v, still there %v", foreign, r.there() != nil)
			}
		})
	})
}

// wantAnother fails unless there is a pod in the place of the one with this UID.
func (r *recycler) wantAnother(uid types.UID) {
	r.t.Helper()
	if r.wantRunning(); r.there() == nil || r.there().UID == uid {
		r.t.Fatal("no other one was made")
	}
}

func TestAPodWithoutItsLabelIsRefused(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		r.pod.Labels = nil
		r.leftover(v1.PodRunning)
		r.forbid(errors.New("somebody has claimed the volume"))
		r.begin(t.Context())
		if _, invalid := errors.AsType[*volume.InvalidSpecError](r.wantEnd()); !invalid || r.there() == nil {
			t.Errorf("invalid %v, still there %v", invalid, r.there() != nil)
		}
	})
}

// leftover has the pod there already.
func (r *recycler) leftover(phase v1.PodPhase) {
	r.t.Helper()
	r.add(r.pod)
	r.is(phase, nil)
}

func TestAPodThatSomebodyDeletes(t *testing.T) {
	t.Run("before it has started", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.begin(t.Context())
			r.is(v1.PodPending, nil)
			uid := r.there().UID
			r.api.Direct(t, http.MethodDelete, r.there())
			time.Sleep(4 * time.Second)
			r.wantAnother(uid)
			r.is(v1.PodSucceeded, nil)
			if err := r.wantEnd(); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("while it runs", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.begin(t.Context())
			r.is(v1.PodRunning, nil)
			r.api.Direct(t, http.MethodDelete, r.there())
			failure, ok := errors.AsType[*volume.PodFailedError](r.wantEnd())
			if !ok || failure.Reason != "Deleted" {
				t.Error(failure)
			}
		})
	})
}

// It may be another one by the time that anybody looks.
func TestAPodThatSomebodyReplaces(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		r.begin(t.Context())
		r.is(v1.PodRunning, nil)
		r.transport.SetDown(clustertest.ErrUnreachable)
		r.api.DropWatches()
		r.api.Direct(t, http.MethodDelete, r.there())
		r.leftover(v1.PodSucceeded)
		r.api.Expire()
		r.transport.SetDown(nil)
		time.Sleep(time.Minute)
		if _, ok := errors.AsType[*volume.PodFailedError](r.wantEnd()); !ok || r.there() == nil {
			t.Error("the success of another pod was taken for this one's, or it was removed")
		}
	})
}

func TestAPodThatMayNotRunAnyMore(t *testing.T) {
	inUse := errors.New("somebody has claimed the volume")
	t.Run("before it is made", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.forbid(inUse)
			r.begin(t.Context())
			if err := r.wantEnd(); !errors.Is(err, inUse) || r.there() != nil {
				t.Errorf("%v", err)
			}
		})
	})
	t.Run("a leftover", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.leftover(v1.PodRunning)
			r.forbid(inUse)
			r.begin(t.Context())
			if err := r.wantEnd(); !errors.Is(err, inUse) || r.there() != nil {
				t.Errorf("%v, still there %v", err, r.there() != nil)
			}
		})
	})
	t.Run("while it runs", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.begin(t.Context())
			r.is(v1.PodRunning, nil)
			r.forbid(inUse)
			time.Sleep(4 * time.Second)
			if err := r.wantEnd(); !errors.Is(err, inUse) || r.there() != nil {
				t.Errorf("%v, still there %v", err, r.there() != nil)
			}
		})
	})
}

func TestAPodWhoseCallerLeaves(t *testing.T) {
	for _, phase := range []v1.PodPhase{"", v1.PodPending, v1.PodRunning} {
		t.Run("phase "+string(phase), func(t *testing.T) {
			inRun(t, func(t *testing.T, r *recycler) {
				ctx, cancel := context.WithCancel(t.Context())
				r.begin(ctx)
				r.is(phase, nil)
				if phase == v1.PodPending { // it starts in the moment that it is to be removed
					var once sync.Once
					defer r.transport.Inject(apiFault{Match: on("delete", "Pod"), Hook: func() {
						once.Do(func() { r.set(v1.PodPending, func(p *v1.Pod) { p.Status.Message = "scheduled" }) })
					}})()
				}
				cancel()
				if err := r.wantEnd(); !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
				if left := r.there() != nil; left != (phase == v1.PodRunning) {
					t.Errorf("still there: %v", left)
				}
			})
		})
	}
}

func TestAPodWhoseNodeIsLost(t *testing.T) {
	t.Run("it runs", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.pod.Spec.NodeName = "node9"
			r.pod.Finalizers = []string{"example.com/node"}
			r.begin(t.Context())
			r.is(v1.PodRunning, func(p *v1.Pod) { p.Status.StartTime = new(metav1.Now()) })
			time.Sleep(6 * time.Minute)
			r.wantRunning()
			time.Sleep(2 * time.Minute)
			lost, ok := errors.AsType[*clusterhost.OverduePodError](r.wantEnd())
			if !ok || lost.Node != "node9" || !lost.Started || r.there() == nil || r.there().DeletionTimestamp == nil {
				t.Errorf("%v", lost)
			}
			r.begin(t.Context())
			time.Sleep(8 * time.Minute) // by the clock of who waits now
			if _, ok := errors.AsType[*clusterhost.OverduePodError](r.wantEnd()); !ok {
				t.Error("not overdue any more")
			}
		})
	})
	t.Run("it never starts", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.begin(t.Context())
			time.Sleep(8 * time.Minute)
			lost, ok := errors.AsType[*clusterhost.OverduePodError](r.wantEnd())
			if !ok || lost.Node != "" || lost.Started || r.there() != nil {
				t.Errorf("%v", lost)
			}
		})
	})
}

func TestAPodThroughAnOutage(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		r.begin(t.Context())
		r.is(v1.PodRunning, func(p *v1.Pod) { p.Status.StartTime = new(metav1.Now()) })
		r.transport.SetDown(clustertest.ErrUnreachable)
		r.api.DropWatches()
		r.is(v1.PodSucceeded, nil)
		time.Sleep(2 * time.Minute)
		r.wantRunning()
		r.transport.SetDown(nil)
		time.Sleep(time.Minute)
		if err := r.wantEnd(); err != nil || r.there() != nil {
			t.Errorf("%v, still there %v", err, r.there() != nil)
		}
	})
}

// Several processes that run one pod do so one after the other.
func TestAPodOfManyRunners(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		results := make(chan error, 5)
		for range 5 {
			go func() {
				results <- clusterhost.NewPodRunner(r.clientset, clusterhost.PodRunnerConfig{}).RunPod(t.Context(), r.pod, r.mayRun, nil)
			}()
		}
		for i := range 5 {
			synctest.Wait()
			if r.is(v1.PodRunning, nil); len(r.created()) != 1 || len(results) != i {
				t.Errorf("%d pods, %d results after %d runs", len(r.created()), len(results), i)
			}
			r.is(v1.PodSucceeded, nil)
		}
		for range 5 {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if r.there() != nil {
			t.Error("it is still there")
		}
	})
}

// The old leader takes a pod back that has not started; the new one runs its own.
func TestAPodOfAnOldLeader(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		go func() {
			first <- clusterhost.NewPodRunner(r.clientset, clusterhost.PodRunnerConfig{}).RunPod(ctx, r.pod, r.mayRun, nil)
		}()
		synctest.Wait()
		r.is(v1.PodPending, nil)
		uid := r.there().UID
		r.begin(t.Context())
		cancel()
		synctest.Wait()
		r.wantAnother(uid)
		r.is(v1.PodSucceeded, nil)
		if err := r.wantEnd(); err != nil || !errors.Is(<-first, context.Canceled) {
			t.Error(err)
		}
	})
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
		r.is(v1.PodRunning, func(p *v1.Pod) { p.Status.StartTime = new(metav1.Now()) })
		time.Sleep(4 * time.Minute)
		r.wantRunning()
		r.is(v1.PodSucceeded, nil)
		time.Sleep(4 * time.Second)
		if err := r.wantEnd(); err != nil || r.there() != nil {
			t.Errorf("%v, still there %v", err, r.there() != nil)
		}
		if len(r.said) != 1 || !strings.HasPrefix(r.said[0], "Warning ") || !strings.Contains(r.said[0], "no role for that") {
			t.Errorf("recorded %q", r.said)
		}
	})
}

// Nothing is known of a pod while the API does not answer.
func TestAPodThroughALongOutage(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		r.begin(t.Context())
		r.is(v1.PodRunning, func(p *v1.Pod) { p.Status.StartTime = new(metav1.Now()) })
		r.transport.SetDown(clustertest.ErrUnreachable)
		r.api.DropWatches()
		r.is(v1.PodSucceeded, nil)
		time.Sleep(time.Hour)
		r.wantRunning()
		r.transport.SetDown(nil)
		time.Sleep(time.Minute)
		if err := r.wantEnd(); err != nil || r.there() != nil {
			t.Errorf("%v, still there %v", err, r.there() != nil)
		}
	})
}

func TestAPodWhoseNodeHasAnotherClock(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		r.begin(t.Context())
		r.is(v1.PodRunning, func(p *v1.Pod) { p.Status.StartTime = new(metav1.NewTime(time.Now().Add(-time.Hour))) })
		time.Sleep(6 * time.Minute)
		r.wantRunning()
		r.is(v1.PodSucceeded, nil)
		if err := r.wantEnd(); err != nil {
			t.Error(err)
		}
	})
}

// A conflict may be a webhook's refusal, which asking at once does not change.
func TestAPodThatCannotBeTakenBack(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		ctx, cancel := context.WithCancel(t.Context())
		r.begin(ctx)
		deletes := 0
		r.api.Refuse(func(q *http.Request) *metav1.Status {
			a, _ := clustertest.ParseRequest(q)
			if a.Verb == "delete" {
				deletes++
				return clustertest.Status(http.StatusConflict, metav1.StatusReasonConflict, a, "a webhook says no")
			}
			return nil
		})
		cancel()
		time.Sleep(11 * time.Second)
		if err := r.wantEnd(); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "a webhook says no") || deletes > 10 {
			t.Errorf("%v: %d deletes", err, deletes)
		}
	})
}

func (r *recycler) created() []metav1.Object {
	all, err := r.api.Store().List(context.Background(), "Pod", "ops")
	if err != nil {
		r.t.Error(err)
	}
	return all
}

func TestAPodThatIsRefused(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		r.api.Refuse(func(*http.Request) *metav1.Status {
			return clustertest.Status(http.StatusForbidden, metav1.StatusReasonForbidden, clustertest.Request{}, "quota exceeded")
		})
		r.begin(t.Context())
		if err := r.wantEnd(); err == nil || !strings.Contains(fmt.Sprint(err), "quota exceeded") || !strings.Contains(err.Error(), "recycler-for-pv1") {
			t.Error(err)
		}
	})
}
