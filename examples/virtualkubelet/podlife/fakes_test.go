package podlife

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/objects"
)

// world is a node in virtual time, with a runtime and volumes in memory.
type world struct {
	t     *testing.T
	api   *fake.Clientset
	pods  *Pods
	begun time.Time
	// exec answers commands.
	exec func(command []string) (code int)
	// onStart is told of each start.
	onStart func(*fakeContainer)

	refusal error   // Check's
	found   []Found // what an earlier agent has started
	stopped atomic.Int32

	mu         sync.Mutex
	starts     []*fakeContainer
	mountError error
	full       error       // WaitForMounted's
	has        []types.UID // the runtime, as Pods tells
	removed    []types.UID
	source     objects.Source
	startError error // set before the pod
}

// failMounts lets mounts fail from now on; nil: they succeed.
func (w *world) failMounts(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mountError = err
}

// inVirtualTime runs a test in a world, which ends with it.
func inVirtualTime(t *testing.T, f func(t *testing.T, w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, api: fake.NewClientset(), begun: time.Now(), exec: func([]string) int { return 0 }, onStart: func(*fakeContainer) {}, source: objects.NewStore()}
		events := record.NewFakeRecorder(10_000)
		w.pods = New(Config{ImageRefs: func(types.UID) (map[string]string, error) { return nil, nil }, API: w.api, Runtime: w, Events: events, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), NodeIP: "192.0.2.1", RootDir: "/no/such/root", FirstPause: 10 * time.Second})
		ctx, stop := context.WithCancel(context.Background())
		w.pods.Begin(ctx, noVolumes{w}, w.source, nil)
		defer w.pods.Wait()
		defer stop()
		f(t, w)
	})
}

// put creates a pod, and begins its life.
func (w *world) put(change func(*v1.Pod)) *v1.Pod {
	w.t.Helper()
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web"},
		Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: new(int64(30)), Containers: []v1.Container{{Name: "main"}}}}
	change(pod)
	if _, err := w.api.CoreV1().Pods("shop").Create(w.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.pods.Put(pod)
	synctest.Wait()
	return pod
}

// get returns the pod at the API server, or nil.
func (w *world) get() *v1.Pod {
	synctest.Wait()
	pod, err := w.api.CoreV1().Pods("shop").Get(context.Background(), "web", metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return pod
}

func (w *world) only() v1.ContainerStatus { return w.get().Status.ContainerStatuses[0] }

// remove deletes the pod, as the API server tells of it.
func (w *world) remove(pod *v1.Pod, grace int64) {
	deleted := pod.DeepCopy()
	deleted.DeletionTimestamp, deleted.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, &grace
	w.pods.Put(deleted)
}

// started returns the containers that were started, in their order.
func (w *world) started() []*fakeContainer {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*fakeContainer(nil), w.starts...)
}

func (w *world) Check(*v1.Pod) error { return w.refusal }
func (w *world) MountOptions(context.Context, *v1.Pod) (containermounts.Options, error) {
	return containermounts.Options{}, nil
}
func (w *world) StartPod(context.Context, *v1.Pod) (Shared, error) { return Shared{}, nil }
func (w *world) Found(context.Context, *v1.Pod) ([]Found, error)   { return w.found, nil }

func (w *world) StopPod(context.Context, types.UID) error {
	w.stopped.Add(1)
	return nil
}
func (w *world) Pods(context.Context) ([]types.UID, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.has), nil
}

func (w *world) RemovePod(_ context.Context, pod types.UID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.removed = append(w.removed, pod)
	return nil
}

// isRemoved reports whether the runtime has nothing of a pod any more.
func (w *world) isRemoved(pod types.UID) bool {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.removed, pod)
}

func (w *world) Start(_ context.Context, l Launch) (Container, error) {
	if w.startError != nil {
		return nil, w.startError
	}
	c := &fakeContainer{world: w, launch: l, name: l.Spec.Name, at: time.Now(), ended: make(chan Ended, 10), gone: make(chan struct{}),
		info: Info{ID: fmt.Sprintf("fake://%s-%d", l.Spec.Name, l.Attempt), Started: time.Now()}}
	w.mu.Lock()
	w.starts = append(w.starts, c)
	w.mu.Unlock()
	w.onStart(c)
	return c, nil
}

// fakeContainer runs until it is ended. Asked to end, it takes its whole grace period.
type fakeContainer struct {
	world  *world
	launch Launch
	name   string
	at     time.Time
	info   Info
	ended  chan Ended
	gone   chan struct{}

	mu    sync.Mutex
	stops []time.Duration // the grace periods that it was given
}

func (c *fakeContainer) end(code int) { c.ended <- Ended{Code: code} }

func (c *fakeContainer) Info() Info { return c.info }

func (c *fakeContainer) Wait(ctx context.Context) (Ended, error) {
	select {
	case e := <-c.ended:
		close(c.gone)
		return e, nil
	case <-ctx.Done():
		return Ended{}, context.Cause(ctx)
	}
}

func (c *fakeContainer) Stop(ctx context.Context, grace time.Duration) error {
	c.mu.Lock()
	c.stops = append(c.stops, grace)
	c.mu.Unlock()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-timer.C:
		c.end(137)
	case <-c.gone:
	case <-ctx.Done():
	}
	return context.Cause(ctx)
}

func (c *fakeContainer) Exec(_ context.Context, command []string, _ time.Duration) (string, int, error) {
	return "", c.world.exec(command), nil
}

// noVolumes are those of pods without volumes, whose mounts can fail.
type noVolumes struct{ world *world }

func (noVolumes) PutPod(*v1.Pod) error { return nil }
func (noVolumes) DeletePod(types.UID)  {}
func (v noVolumes) WaitForMounted(context.Context, types.UID) error {
	v.world.mu.Lock()
	defer v.world.mu.Unlock()
	return v.world.full
}
func (noVolumes) WaitForUnpublished(context.Context, types.UID) error { return nil }
func (noVolumes) ExtraSupplementalGroups(types.UID) []int64           { return nil }
func (v noVolumes) ContainerMounts(context.Context, types.UID, string, containermounts.Options) ([]containermounts.Mount, []containermounts.Device, error) {
	v.world.mu.Lock()
	defer v.world.mu.Unlock()
	return nil, nil, v.world.mountError
}
