package podlife

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/podvol/podvol/volume"
)

// What is started again after which end, and what becomes of the pod.
func TestRestartPolicies(t *testing.T) {
	for _, test := range []struct {
		policy   v1.RestartPolicy
		code     int
		restarts bool
		phase    v1.PodPhase
	}{
		{v1.RestartPolicyAlways, 0, true, v1.PodRunning},
		{v1.RestartPolicyAlways, 1, true, v1.PodRunning},
		{v1.RestartPolicyOnFailure, 0, false, v1.PodSucceeded},
		{v1.RestartPolicyOnFailure, 1, true, v1.PodRunning},
		{v1.RestartPolicyNever, 0, false, v1.PodSucceeded},
		{v1.RestartPolicyNever, 1, false, v1.PodFailed},
	} {
		t.Run(fmt.Sprintf("%s after %d", test.policy, test.code), func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, w *world) {
				w.put(func(p *v1.Pod) { p.Spec.RestartPolicy = test.policy })
				w.started()[0].end(test.code)
				if again := len(w.started()) == 2; again != test.restarts || w.get().Status.Phase != test.phase {
					t.Errorf("started again: %v, and the pod is %s", again, w.get().Status.Phase)
				}
			})
		})
	}
}

// Once the end of all lives is waited for, none begins beside the wait.
func TestNoLifeBeginsAfterWait(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		w.pods.Wait()
		w.put(func(*v1.Pod) {})
		if n := len(w.started()); n != 0 {
			t.Errorf("%d containers were started", n)
		}
	})
}

// A pod for whose volumes the node has no room is rejected in the kubelet's words. One that runs
// already, by an earlier agent, goes on.
func TestPodsWithoutRoomForTheirVolumes(t *testing.T) {
	full := &volume.Failure{Cause: volume.ErrAttachLimitExceeded, What: "16 of 16 slots are taken"}
	t.Run("new", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, w *world) {
			w.full = full
			w.put(func(*v1.Pod) {})
			if s := w.get().Status; s.Phase != v1.PodFailed || s.Reason != "VolumeAttachmentLimitExceeded" || s.Message != full.Error() || len(w.started()) > 0 {
				t.Errorf("%d were started; %v", len(w.started()), s.String())
			}
		})
	})
	t.Run("running", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, w *world) {
			left := &fakeContainer{world: w, name: "main", ended: make(chan Ended, 10), gone: make(chan struct{}), info: Info{ID: "fake://left", Started: time.Now()}}
			w.full, w.found = full, []Found{{Name: "main", Info: left.info, Runs: left}}
			w.put(func(*v1.Pod) {})
			time.Sleep(time.Hour)
			w.mu.Lock()
			w.full = nil
			w.mu.Unlock()
			time.Sleep(time.Hour)
			if s := w.get().Status; s.Phase != v1.PodRunning || w.stopped.Load() > 0 || len(w.started()) > 0 {
				t.Errorf("stopped %d times, started %d; %v", w.stopped.Load(), len(w.started()), s.String())
			}
		})
	})
}

// What the runtime has made of a pod that is no more, or that ended meanwhile, is removed when
// it tells of it, and that of a pod that lives is not.
func TestPodsThatAppearLate(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		appeared := make(chan struct{})
		go w.pods.RemoveLate(ctx, appeared)
		pod := w.put(func(*v1.Pod) {})
		w.mu.Lock()
		w.has = []types.UID{"uid-late", pod.UID}
		w.mu.Unlock()
		appeared <- struct{}{}
		if !w.isRemoved("uid-late") || w.isRemoved(pod.UID) {
			t.Errorf("removed: %v", w.removed)
		}
		w.mu.Lock()
		w.has, w.removed = []types.UID{pod.UID}, nil
		w.mu.Unlock()
		w.remove(pod, 0)
		if !w.isRemoved(pod.UID) || len(w.removed) != 2 {
			t.Errorf("removed with its life, and after it: %v", w.removed)
		}
	})
}

// A pod that asks for what the runtime does not offer is refused. Where an earlier agent has
// left it running, it goes on, and what of it ends is not started again.
func TestUnfitPods(t *testing.T) {
	refusal := errors.New("the runtime has no such thing")
	t.Run("new", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, w *world) {
			w.refusal = refusal
			w.put(func(*v1.Pod) {})
			if s := w.get().Status; s.Phase != v1.PodFailed || s.Message != refusal.Error() || len(w.started()) > 0 {
				t.Errorf("%d were started; %v", len(w.started()), s.String())
			}
		})
	})
	t.Run("running", func(t *testing.T) {
		inVirtualTime(t, func(t *testing.T, w *world) {
			left := &fakeContainer{world: w, name: "main", ended: make(chan Ended, 10), gone: make(chan struct{}), info: Info{ID: "fake://left", Started: time.Now()}}
			w.refusal, w.found = refusal, []Found{{Name: "main", Info: left.info, Runs: left}}
			w.put(func(*v1.Pod) {})
			time.Sleep(time.Hour)
			if s := w.get().Status; s.Phase != v1.PodRunning || w.stopped.Load() > 0 {
				t.Errorf("stopped %d times; %v", w.stopped.Load(), s.String())
			}
			left.end(1)
			time.Sleep(time.Hour)
			s := w.only()
			if len(w.started()) > 0 || s.State.Waiting == nil || s.State.Waiting.Reason != configError || !strings.Contains(s.State.Waiting.Message, refusal.Error()) {
				t.Errorf("%d were started; %v", len(w.started()), s.String())
			}
		})
	})
}

// The first restart comes at once, the next after 10 s, and each further pause is twice as
// long, up to five minutes.
func TestRestartsBackOff(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		w.onStart = func(c *fakeContainer) { c.end(1) }
		w.put(func(*v1.Pod) {})
		time.Sleep(20 * time.Minute)
		var pauses []time.Duration
		starts := w.started()
		for i, c := range starts[1:] {
			pauses = append(pauses, c.at.Sub(starts[i].at)/time.Second)
		}
		if want := []time.Duration{0, 10, 20, 40, 80, 160, 300, 300}; !slices.Equal(pauses[:len(want)], want) {
			t.Errorf("after pauses of %v seconds", pauses)
		}
		s := w.only()
		if s.State.Waiting == nil || s.State.Waiting.Reason != "CrashLoopBackOff" || s.LastTerminationState.Terminated.ExitCode != 1 || int(s.RestartCount) != len(starts)-1 {
			t.Errorf("after %d starts: %v", len(starts), s.String())
		}
	})
}

// A container gets the grace period of the deletion, which another one can shorten, less
// the time that its hook takes, but at least two seconds after a hook.
func TestGracePeriods(t *testing.T) {
	sleep := func(seconds int64) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: seconds}}}
		}
	}
	for name, test := range map[string]struct {
		change func(*v1.Pod)
		hurry  int64 // after 10 s
		ended  time.Duration
		stops  []time.Duration
	}{
		"as asked":       {func(*v1.Pod) {}, 0, 30 * time.Second, []time.Duration{30 * time.Second}},
		"shortened":      {func(*v1.Pod) {}, 5, 15 * time.Second, []time.Duration{30 * time.Second, 5*time.Second - 100*time.Millisecond}},
		"after a hook":   {sleep(20), 0, 30 * time.Second, []time.Duration{10 * time.Second}},
		"a hook for all": {sleep(60), 0, 32 * time.Second, []time.Duration{2 * time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			inVirtualTime(t, func(t *testing.T, w *world) {
				pod := w.put(test.change)
				w.remove(pod, 30)
				if test.hurry > 0 {
					time.Sleep(10 * time.Second)
					w.remove(pod, test.hurry)
				}
				for time.Since(w.begun) < test.ended-time.Second {
					time.Sleep(time.Second)
					if w.get() == nil {
						t.Fatalf("the object is gone after %s", time.Since(w.begun))
					}
				}
				time.Sleep(2 * time.Second)
				if p := w.get(); p != nil {
					t.Errorf("the object is still there: %v", p.Status)
				}
				if c := w.started()[0]; !slices.Equal(c.stops, test.stops) {
					t.Errorf("it was given %v", c.stops)
				}
			})
		})
	}
}

// Probes count as the API says: after their delay, every period, by their thresholds, and
// none before the startup probe has been well.
func TestProbesInTime(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		var ready, ill atomic.Bool
		w.exec = func(command []string) int {
			if command[0] == "startup" && time.Since(w.begun) < 20*time.Second || command[0] == "ready" && !ready.Load() || command[0] == "alive" && ill.Load() {
				return 1
			}
			return 0
		}
		probe := func(name string, delay, failures int32) *v1.Probe {
			return &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: []string{name}}}, InitialDelaySeconds: delay, PeriodSeconds: 10, FailureThreshold: failures}
		}
		w.put(func(p *v1.Pod) {
			c := &p.Spec.Containers[0]
			c.StartupProbe, c.ReadinessProbe, c.LivenessProbe = probe("startup", 5, 10), probe("ready", 0, 1), probe("alive", 0, 3)
			c.LivenessProbe.TerminationGracePeriodSeconds = new(int64(7))
		})
		states := func() string {
			s := w.only()
			return fmt.Sprint(*s.Started, s.Ready, s.RestartCount)
		}
		for _, step := range []struct {
			after time.Duration // since the beginning
			do    func()
			want  string
		}{
			{24 * time.Second, func() { ready.Store(true) }, "false false 0"},
			{26 * time.Second, func() { ready.Store(false) }, "true true 0"},
			{34 * time.Second, func() {}, "true true 0"},
			{36 * time.Second, func() { ill.Store(true) }, "true false 0"},
			{64 * time.Second, func() {}, "true false 0"},
			{71 * time.Second, func() {}, "true false 0"}, // failed at 45, 55 and 65, and asked to end
			{73 * time.Second, func() {}, "false false 1"},
		} {
			time.Sleep(step.after - time.Since(w.begun))
			synctest.Wait()
			if got := states(); got != step.want {
				t.Errorf("after %s it is %s, want %s", step.after, got, step.want)
			}
			step.do()
		}
		if c := w.started()[0]; !slices.Equal(c.stops, []time.Duration{7 * time.Second}) {
			t.Errorf("it was given %v", c.stops)
		}
	})
}

// A pod that may be active for a time only fails after that.
func TestActiveDeadline(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		w.put(func(p *v1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64(60)) })
		time.Sleep(55 * time.Second)
		if phase := w.get().Status.Phase; phase != v1.PodRunning {
			t.Errorf("before its deadline it is %s", phase)
		}
		time.Sleep(40 * time.Second) // the deadline, and the grace period
		if s := w.get().Status; s.Phase != v1.PodFailed || s.Reason != "DeadlineExceeded" || len(w.started()) != 1 {
			t.Errorf("after it: %s %s, %d starts", s.Phase, s.Reason, len(w.started()))
		}
	})
}

// A mount that cannot be made is tried again, and the status says why: with the kubelet's
// word for a sub-path, which its users and tests look for.
func TestMountsThatFail(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, w *world) {
		w.failMounts(errors.New("it leads out of its volume"))
		w.put(func(p *v1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "data", MountPath: "/data", SubPath: "part"}}
		})
		s := w.only().State.Waiting
		if s == nil || s.Reason != "CreateContainerConfigError" || !strings.Contains(s.Message, "subPath") || !strings.Contains(s.Message, "leads out") {
			t.Errorf("it waits with %v", s)
		}
		w.failMounts(nil)
		time.Sleep(time.Minute)
		if s := w.only(); s.State.Running == nil || s.RestartCount != 0 || len(w.started()) != 1 {
			t.Errorf("afterwards: %v", s.String())
		}
	})
}

// Nothing is left of a static pod that has gone while the API server does not answer. Its
// mirror goes afterwards. Of another pod the runtime keeps the rest until its object has
// gone.
func TestStaticPodEndsWithoutAnAPIServer(t *testing.T) {
	for _, static := range []bool{true, false} {
		inVirtualTime(t, func(t *testing.T, w *world) {
			pod := w.put(func(p *v1.Pod) {
				if static {
					p.Annotations = map[string]string{SourceAnnotation: FromFile, v1.MirrorPodAnnotationKey: "uid-web"}
				}
			})
			if static { // the API server has its mirror, which is not the pod
				delete(pod.Annotations, v1.MirrorPodAnnotationKey)
				w.pods.Put(pod)
			}
			if n := len(w.started()); n != 1 {
				t.Fatalf("%d containers were started", n)
			}
			var away atomic.Bool
			away.Store(true)
			w.api.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				return away.Load(), nil, errors.New("the API server is away")
			})
			if static {
				w.pods.Gone(pod)
			} else {
				w.remove(pod, 30)
			}
			time.Sleep(5 * time.Minute)
			if is := w.isRemoved(pod.UID); is != static {
				t.Errorf("static %t: removed %t", static, is)
			}
			away.Store(false)
			time.Sleep(time.Minute)
			if !w.isRemoved(pod.UID) || w.get() != nil {
				t.Errorf("static %t: with the API server back it is not removed, or %v is left", static, w.get())
			}
		})
	}
}

// The containers of a static pod start without an API server; those of
// other pods wait for the services that they are told of.
func TestStaticPodStartsWithoutAnAPIServer(t *testing.T) {
	for _, static := range []bool{true, false} {
		inVirtualTime(t, func(t *testing.T, w *world) {
			w.api.PrependReactor("*", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, errors.New("the API server is away")
			})
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web"}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main"}}}}
			if static {
				pod.Annotations = map[string]string{SourceAnnotation: FromFile}
			}
			w.pods.Put(pod)
			if n := len(w.started()); (n == 1) != static {
				t.Errorf("static %t: %d containers were started", static, n)
			}
		})
	}
}
