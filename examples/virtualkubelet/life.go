package main

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// life is one pod from its creation to its deletion. Its volumes come before its
// containers and go after them.
type life struct {
	provider *provider
	uid      types.UID
	name     types.NamespacedName
	begun    metav1.Time

	ending chan struct{} // closed: the containers shall stop
	kill   chan struct{} // closed: their grace period is over
	end    func(grace int64)

	mu         sync.Mutex
	pod        *v1.Pod              // as the API server last had it
	containers []v1.ContainerStatus // in the order of the spec
	troubles   map[string]error     // of volumes that could not be mounted yet
	mounted    bool
	conditions map[v1.PodConditionType]v1.PodCondition // as they were last
	over       bool                                    // no container runs or ever will
	changed    chan struct{}                           // there is something to report; nil in the end
}

func newLife(p *provider, pod *v1.Pod) *life {
	l := &life{provider: p, uid: pod.UID, name: nameOf(pod), begun: now(), pod: pod.DeepCopy(), troubles: make(map[string]error), conditions: make(map[v1.PodConditionType]v1.PodCondition),
		ending: make(chan struct{}), kill: make(chan struct{}), changed: make(chan struct{}, 1)}
	ending, kill := sync.OnceFunc(func() { close(l.ending) }), sync.OnceFunc(func() { close(l.kill) })
	l.end = func(grace int64) {
		ending()
		time.AfterFunc(time.Duration(grace)*time.Second, kill)
	}
	for _, c := range pod.Status.Conditions {
		l.conditions[c.Type] = c
	}
	for i := range pod.Spec.Containers {
		l.containers = append(l.containers, foundStatus(pod, &pod.Spec.Containers[i], p.processes.hold))
	}
	return l
}

// run lives until the pod is deleted or ctx ends. With ctx the containers end
// too, but not the pod: the next start finds it at the API server, and its volumes
// where they are.
func (l *life) run(ctx context.Context) {
	reported := make(chan struct{})
	go func(changed <-chan struct{}) {
		defer close(reported)
		for range changed {
			l.provider.tell(l.snapshot())
		}
	}(l.changed)
	l.set(func() {})
	l.runContainers(ctx)
	if ctx.Err() == nil {
		l.set(func() { l.over = true })
		l.provider.volumes.DeletePod(l.uid)
		l.provider.tellGone(l.uid)
		select {
		case <-l.ending:
		case <-ctx.Done():
		}
	}
	l.provider.forget(l)
	l.mu.Lock()
	close(l.changed)
	l.changed = nil
	l.mu.Unlock()
	<-reported
}

// runContainers runs them when all volumes are mounted, and returns when the last
// has ended for good.
func (l *life) runContainers(ctx context.Context) {
	starting, stop := context.WithCancel(ctx) // ends when nothing may be started any more
	defer stop()
	go func() {
		select {
		case <-l.ending:
			stop()
		case <-starting.Done():
		}
	}()
	if err := l.provider.processes.left.end(starting, l.uid); err != nil {
		return
	}
	if err := l.provider.volumes.WaitForMounted(starting, l.uid); err != nil {
		return
	}
	l.set(func() { l.mounted = true })
	var all sync.WaitGroup
	for i := range l.containers {
		all.Go(func() { (&container{life: l, index: i}).keep(ctx, starting) })
	}
	all.Wait()
}

// set changes what the pod's status says, and has it reported.
func (l *life) set(change func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change()
	select {
	case l.changed <- struct{}{}:
	default: // a report is due already, or there will be none any more
	}
}

func (l *life) update(pod *v1.Pod) { l.set(func() { l.pod = pod.DeepCopy() }) }

// volumeChanged is told of every attempt at one of the pod's volumes. It does not
// block.
func (l *life) volumeChanged(volume string, err error) {
	l.set(func() {
		if err == nil {
			delete(l.troubles, volume)
			return
		}
		l.troubles[volume] = err
	})
}

func (l *life) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

func (l *life) isEnding() bool {
	select {
	case <-l.ending:
		return true
	default:
		return false
	}
}

// snapshot is the pod as it is now.
func (l *life) snapshot() *v1.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	pod := l.pod.DeepCopy()
	l.fillIn(&pod.Status)
	return pod
}

// gracePeriod is that of the deletion, or else the pod's own, in seconds.
func gracePeriod(pod *v1.Pod) int64 {
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		return *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return *pod.Spec.TerminationGracePeriodSeconds
	}
	return v1.DefaultTerminationGracePeriodSeconds
}
