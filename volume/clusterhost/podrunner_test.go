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

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/recyclerpod"
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
		ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "recycler-for-pv1", Labels: map[string]string{recyclerpod.Label: "release-1"}},
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

// beginElsewhere has another process run the pod as well.
func (r *recycler) beginElsewhere(ctx context.Context, result chan<- error) {
	runner := clusterhost.NewPodRunner(r.clientset, clusterhost.PodRunnerConfig{})
	go func() { result <- runner.RunPod(ctx, r.pod, r.mayRun, nil) }()
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

// starts has its node start the pod.
func (r *recycler) starts() {
	r.t.Helper()
	r.is(v1.PodRunning, func(p *v1.Pod) { p.Status.StartTime = new(metav1.Now()) })
}

// wantSuccess fails unless RunPod has returned nil by now, and nothing is left.
func (r *recycler) wantSuccess() {
	r.t.Helper()
	if err := r.wantEnd(); err != nil || r.there() != nil {
		r.t.Errorf("%v, still there %v", err, r.there() != nil)
	}
}

// wantRemoved fails unless RunPod has returned this error by now, and nothing is left.
func (r *recycler) wantRemoved(reason error) {
	r.t.Helper()
	if err := r.wantEnd(); !errors.Is(err, reason) || r.there() != nil {
		r.t.Errorf("%v, still there %v", err, r.there() != nil)
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
				failed := errors.Is(err, recyclerpod.ErrFailed)
				if failed != tc.failed || failed && strings.Contains(err.Error(), " failed ("+tc.reason+")") == (tc.reason == "") || !failed && err != nil {
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

func TestAPodThatMayNotRunAnyMore(t *testing.T) {
	inUse := errors.New("somebody has claimed the volume")
	t.Run("before it is made", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.forbid(inUse)
			r.begin(t.Context())
			r.wantRemoved(inUse)
		})
	})
	t.Run("a leftover", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.leftover(v1.PodRunning)
			r.forbid(inUse)
			r.begin(t.Context())
			r.wantRemoved(inUse)
		})
	})
	t.Run("while it runs", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.begin(t.Context())
			r.is(v1.PodRunning, nil)
			r.forbid(inUse)
			time.Sleep(4 * time.Second)
			r.wantRemoved(inUse)
		})
	})
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
