package clusterhost_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/clusterhost"
	"github.com/podvol/podvol/volume/objects/cluster/clustertest"
	"github.com/podvol/podvol/volume/recyclerpod"
)

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
				r.wantSuccess()
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
				if failed := r.wantEnd(); !errors.Is(failed, recyclerpod.ErrFailed) || r.there() != nil {
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
			r.wantSuccess()
		})
	})
	t.Run("somebody else's", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.leftover(v1.PodSucceeded)
			r.pod.Labels = map[string]string{recyclerpod.Label: "release-2"}
			r.begin(t.Context())
			foreign := r.wantEnd()
			if !errors.Is(foreign, clusterhost.ErrForeignPod) || !strings.Contains(foreign.Error(), `="release-1"`) || r.there() == nil {
				t.Errorf("%v, still there %v", foreign, r.there() != nil)
			}
		})
	})
}

// leftover has the pod there already.
func (r *recycler) leftover(phase v1.PodPhase) {
	r.t.Helper()
	r.add(r.pod)
	r.is(phase, nil)
}

// wantAnother fails unless there is a pod in the place of the one with this UID.
func (r *recycler) wantAnother(uid types.UID) {
	r.t.Helper()
	if r.wantRunning(); r.there() == nil || r.there().UID == uid {
		r.t.Fatal("no other one was made")
	}
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
			r.wantSuccess()
		})
	})
	t.Run("while it runs", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			r.begin(t.Context())
			r.is(v1.PodRunning, nil)
			r.api.Direct(t, http.MethodDelete, r.there())
			failure := r.wantEnd()
			if !errors.Is(failure, recyclerpod.ErrFailed) || !strings.Contains(failure.Error(), "(Deleted)") {
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
		if !errors.Is(r.wantEnd(), recyclerpod.ErrFailed) || r.there() == nil {
			t.Error("the success of another pod was taken for this one's, or it was removed")
		}
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

// Nobody would ask whether it may run.
func TestAPodWhoseCreationIsNotAnswered(t *testing.T) {
	t.Run("and the caller leaves", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			ctx, cancel := context.WithCancel(t.Context())
			defer r.transport.Inject(apiFault{Match: on("post", "Pod"), After: true, Hook: cancel, Err: clustertest.ErrUnreachable})()
			r.begin(ctx)
			if err := r.wantEnd(); err == nil || r.there() != nil {
				t.Errorf("%v, still there %v", err, r.there() != nil)
			}
		})
	})
	t.Run("and the caller stays", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			defer r.transport.Inject(apiFault{Match: on("post", "Pod"), Nth: 1, After: true, Err: clustertest.ErrUnreachable})()
			r.begin(t.Context())
			uid := r.there().UID
			r.wantRunning()
			r.is(v1.PodSucceeded, nil)
			r.wantAnother(uid)
			r.is(v1.PodSucceeded, nil)
			r.wantSuccess()
		})
	})
	t.Run("but refused when it was sent again", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			quota := clustertest.Status(http.StatusForbidden, metav1.StatusReasonForbidden, clustertest.Request{}, "quota exceeded")
			defer r.transport.Inject(apiFault{Match: on("post", "Pod"), Nth: 1, After: true, Err: &apierrors.StatusError{ErrStatus: *quota}})()
			r.begin(t.Context())
			r.wantRunning()
			r.is(v1.PodSucceeded, nil)
			synctest.Wait()
			r.is(v1.PodSucceeded, nil)
			r.wantSuccess()
		})
	})
	t.Run("since it has not arrived", func(t *testing.T) {
		inRun(t, func(t *testing.T, r *recycler) {
			defer r.transport.Inject(apiFault{Match: on("post", "Pod"), Err: clustertest.ErrUnreachable})()
			r.begin(t.Context())
			if err := r.wantEnd(); !errors.Is(err, clustertest.ErrUnreachable) {
				t.Error(err)
			}
		})
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

// Several processes that run one pod do so one after the other.
func TestAPodOfManyRunners(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		results := make(chan error, 5)
		for range 5 {
			r.beginElsewhere(t.Context(), results)
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

func (r *recycler) created() []metav1.Object {
	all, err := r.api.Store().List(context.Background(), "Pod", "ops")
	if err != nil {
		r.t.Error(err)
	}
	return all
}

// The old leader takes a pod back that has not started; the new one runs its own.
func TestAPodOfAnOldLeader(t *testing.T) {
	inRun(t, func(t *testing.T, r *recycler) {
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan error, 1)
		r.beginElsewhere(ctx, first)
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
