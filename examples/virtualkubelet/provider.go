package main

import (
	"context"
	"log/slog"
	"sync"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	"github.com/virtual-kubelet/virtual-kubelet/node"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/podvol/podvol/volume/volumemanager"
)

// provider is what virtual-kubelet's pod controller drives. None of its methods
// waits for a volume or a container: that is the business of each pod's life, a
// goroutine, which reports what becomes of it.
type provider struct {
	processes *processes
	volumes   *volumes
	log       *slog.Logger
	begin     func(*life) // in a goroutine of its own

	lives sync.Map // of types.UID: *life

	mu     sync.Mutex
	names  map[types.NamespacedName]*life // without those that are being deleted
	notify func(*v1.Pod)

	watching sync.Mutex
	gone     func(types.UID)
}

var (
	_ node.PodLifecycleHandler = (*provider)(nil)
	_ node.PodNotifier         = (*provider)(nil)
)

func newProvider(processes *processes, log *slog.Logger) *provider {
	return &provider{processes: processes, log: log, names: make(map[types.NamespacedName]*life),
		notify: func(*v1.Pod) {}, gone: func(types.UID) {}}
}

// CreatePod declares the pod's volumes and begins its life. A second call
// updates it.
func (p *provider) CreatePod(_ context.Context, pod *v1.Pod) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.names[nameOf(pod)]; old != nil && old.uid != pod.UID {
		p.end(old, gracePeriod(pod)) // its successor has come before its own end was heard of
	}
	l, begun := p.life(pod.UID)
	switch {
	case begun && l.isEnding():
		return errdefs.InvalidInputf("pod %s/%s is being deleted", pod.Namespace, pod.Name)
	case begun && l.isOver():
		l.update(pod) // its volumes have gone, and stay so
		return nil
	case !begun:
		if err := p.processes.check(pod); err != nil {
			return errdefs.AsInvalidInput(err)
		}
		l = newLife(p, pod)
	}
	if err := p.volumes.PutPod(pod); err != nil {
		return errdefs.AsInvalidInput(err) // nothing was touched
	}
	p.names[nameOf(pod)] = l
	if begun {
		l.update(pod)
		return nil
	}
	p.lives.Store(pod.UID, l)
	p.begin(l)
	return nil
}

// UpdatePod takes a changed pod over: its labels and annotations reach the
// volumes that show them. Config maps and secrets need no call, they are watched.
func (p *provider) UpdatePod(ctx context.Context, pod *v1.Pod) error { return p.CreatePod(ctx, pod) }

// DeletePod begins the end of the pod: its containers are asked to stop, and
// killed after the grace period; its volumes go after them.
func (p *provider) DeletePod(_ context.Context, pod *v1.Pod) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.life(pod.UID)
	if !ok {
		return errdefs.NotFoundf("pod %s/%s is not here", pod.Namespace, pod.Name)
	}
	p.end(l, gracePeriod(pod))
	return nil
}

// GetPod returns the pod of that name that is not being deleted: who comes after
// that one is created and not updated.
func (p *provider) GetPod(_ context.Context, namespace, name string) (*v1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.names[types.NamespacedName{Namespace: namespace, Name: name}]
	if !ok {
		return nil, errdefs.NotFoundf("pod %s/%s is not here", namespace, name)
	}
	return l.snapshot(), nil
}

// GetPodStatus is GetPod for the status alone.
func (p *provider) GetPodStatus(ctx context.Context, namespace, name string) (*v1.PodStatus, error) {
	pod, err := p.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

// GetPods returns the pods that are not being deleted.
func (p *provider) GetPods(context.Context) ([]*v1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var pods []*v1.Pod
	for _, l := range p.names {
		pods = append(pods, l.snapshot())
	}
	return pods, nil
}

// NotifyPods has every change of a pod's status told to notify.
func (p *provider) NotifyPods(_ context.Context, notify func(*v1.Pod)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notify = notify
}

// tell reports a pod, unless another one has its name by now.
func (p *provider) tell(pod *v1.Pod) {
	p.mu.Lock()
	notify, l := p.notify, p.names[nameOf(pod)]
	p.mu.Unlock()
	if l == nil || l.uid == pod.UID {
		notify(pod)
	}
}

// ContainersGone tells podvol whether a pod's volumes may go. Of pods that this
// process does not know, processes may be left that an earlier one has started.
func (p *provider) ContainersGone(ctx context.Context, pod types.UID) (bool, error) {
	if l, ok := p.life(pod); ok {
		return l.isOver(), nil
	}
	err := p.processes.left.end(ctx, pod)
	return err == nil, err
}

// WatchContainers has podvol told when that may have changed.
func (p *provider) WatchContainers(f func(types.UID)) (stop func()) {
	set := func(f func(types.UID)) {
		p.watching.Lock()
		defer p.watching.Unlock()
		p.gone = f
	}
	set(f)
	return func() { set(func(types.UID) {}) }
}

func (p *provider) tellGone(pod types.UID) {
	p.watching.Lock()
	defer p.watching.Unlock()
	p.gone(pod)
}

// handler follows the pods' informer where virtual-kubelet does not: it does not
// hear of pods that were deleted while the API server could not be reached, nor of
// those that another one of the same name and content has taken the place of.
func (p *provider) handler(known func() []any) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(old, new any) {
			if pod := new.(*v1.Pod); pod.UID != old.(*v1.Pod).UID && !isOver(pod) {
				if err := p.CreatePod(context.Background(), pod); err != nil {
					p.log.Warn("a pod of the same name as an earlier one cannot be run", "pod", nameOf(pod), "error", err)
				}
			}
		},
		DeleteFunc: func(object any) {
			if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = tombstone.Obj
			}
			_ = p.DeletePod(context.Background(), object.(*v1.Pod)) // which may know nothing of it
			p.complete(known)
		},
	}
}

func (p *provider) life(pod types.UID) (*life, bool) {
	l, ok := p.lives.Load(pod)
	if !ok {
		return nil, false
	}
	return l.(*life), true
}

func (p *provider) end(l *life, grace int64) {
	l.end(grace)
	if p.names[l.name] == l {
		delete(p.names, l.name)
	}
}

// forget is called when the containers of a deleted pod have gone.
func (p *provider) forget(l *life) {
	p.lives.Delete(l.uid)
	p.tellGone(l.uid)
	if !l.isEnding() {
		return // the next start may find what is noted of it
	}
	if err := p.processes.left.drop(l.uid); err != nil {
		p.log.Warn("what a pod has printed stays behind", "pod", l.name, "error", err)
	}
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

func isOver(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// volumeChanged is told of every attempt at a volume, and does not block.
func (p *provider) volumeChanged(s volumemanager.VolumeStatus) {
	if l, ok := p.life(s.PodUID); ok && s.Ended == "set-up" {
		l.volumeChanged(s.Volume, s.Err)
	}
}

// complete tells podvol which pods the API server knows.
func (p *provider) complete(known func() []any) {
	p.mu.Lock() // so that none of several answers is overtaken by an older one
	defer p.mu.Unlock()
	p.volumes.complete(known())
}
