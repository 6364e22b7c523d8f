package main

import (
	"context"
	"fmt"
	"io"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume/volumemanager"
)

// runtime pretends to run containers: it counts them. A real one is asked
// through CRI, or is the micro-VM that the pod is.
type runtime struct {
	log *log

	mu      sync.Mutex
	running map[types.UID]int // containers of each pod
	watcher func(types.UID)
}

func newRuntime(log *log) *runtime {
	return &runtime{log: log, running: make(map[types.UID]int), watcher: func(types.UID) {}}
}

var _ volumemanager.PodContainers = (*runtime)(nil)

// ContainersGone implements [volumemanager.PodContainers]. It answers for pods
// that this process has never seen too: after a restart of the agent their
// containers may still run.
func (r *runtime) ContainersGone(_ context.Context, podUID types.UID) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[podUID] == 0, nil
}

// WatchContainers implements [volumemanager.PodContainers].
func (r *runtime) WatchContainers(f func(types.UID)) (stop func()) {
	r.watch(f)
	return func() { r.watch(func(types.UID) {}) }
}

func (r *runtime) watch(f func(types.UID)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watcher = f
}

// start starts the pod's containers, each with its volumes.
func (r *runtime) start(pod *v1.Pod, paths map[string]string) error {
	for _, c := range pod.Spec.Containers {
		if c.Image == "" {
			return fmt.Errorf("container %s of pod %s/%s has no image", c.Name, pod.Namespace, pod.Name)
		}
		for _, m := range c.VolumeMounts {
			r.log.line("container %s sees volume %s at %s, which is %s", c.Name, m.Name, m.MountPath, paths[m.Name])
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running[pod.UID] = len(pod.Spec.Containers)
	return nil
}

// stop asks the pod's containers to end, and returns at once. Theirs end at
// once too; what matters is who tells podvol, and when.
func (r *runtime) stop(podUID types.UID) {
	r.mu.Lock()
	delete(r.running, podUID)
	tell := r.watcher
	r.mu.Unlock()
	tell(podUID)
}

// log prints what happens, a line each. It takes the events that a node would
// send to the API server (record.EventRecorder), and the states of volumes.
type log struct {
	mu  sync.Mutex
	out io.Writer
}

func (l *log) line(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(l.out, format+"\n", args...)
}

// Event implements volume.EventSink.
func (l *log) Event(pod *v1.Pod, eventType, reason, message string) {
	l.line("event %s %s of pod %s/%s: %s", eventType, reason, pod.Namespace, pod.Name, message)
}

// volume is told of all that happens to volumes. It must not block.
func (l *log) volume(v volumemanager.VolumeStatus) {
	if v.Ended != "" {
		l.line("volume %s of pod %s is %s, after %s", v.Volume, v.Pod, v.State, v.Ended)
	}
}
