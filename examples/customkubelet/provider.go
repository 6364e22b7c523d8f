package main

import (
	"context"
	"errors"
	"fmt"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Provider has the methods of virtual-kubelet's PodLifecycleHandler that
// concern volumes. It is safe for concurrent use.
type Provider struct {
	volumes *volumemanager.Manager
	runtime *runtime

	mu   sync.Mutex
	pods map[types.NamespacedName]*v1.Pod
}

func newProvider(volumes *volumemanager.Manager, runtime *runtime) *Provider {
	return &Provider{volumes: volumes, runtime: runtime, pods: make(map[types.NamespacedName]*v1.Pod)}
}

// CreatePod mounts the pod's volumes and then starts its containers. When ctx
// ends first, the error says of each volume what it waits for; the wish stays,
// and a second call waits on.
func (p *Provider) CreatePod(ctx context.Context, pod *v1.Pod) error {
	if err := p.volumes.PutPod(pod); err != nil {
		return err // invalid; nothing has been touched
	}
	p.keep(pod)
	if err := p.volumes.WaitForMounted(ctx, pod.UID); err != nil {
		return err
	}
	if err := p.runtime.start(pod, p.paths(pod.UID)); err != nil {
		// TearDownPod is a promise that the pod's containers no longer run:
		// these never did.
		return errors.Join(err, p.volumes.TearDownPod(context.WithoutCancel(ctx), pod.UID))
	}
	return nil
}

// paths returns where each of the pod's volumes is on this machine.
func (p *Provider) paths(podUID types.UID) map[string]string {
	paths := make(map[string]string)
	for _, v := range p.volumes.Explain() {
		if v.PodUID == podUID {
			paths[v.Volume] = v.Path
		}
	}
	return paths
}

// UpdatePod takes a changed pod over: its labels and annotations reach the
// downwardAPI volumes that show them. Changes of config maps and secrets need
// no call; podvol watches them.
func (p *Provider) UpdatePod(ctx context.Context, pod *v1.Pod) error {
	if err := p.volumes.PutPod(pod); err != nil {
		return err
	}
	p.keep(pod)
	return p.volumes.WaitForMounted(ctx, pod.UID)
}

// DeletePod stops the pod's containers and waits until nothing of its volumes is left in it.
// DeletePod of the manager only withdraws the wish: the volumes go when the
// runtime says that the containers have gone, which may take their grace
// period.
func (p *Provider) DeletePod(ctx context.Context, pod *v1.Pod) error {
	p.volumes.DeletePod(pod.UID)
	p.runtime.stop(pod.UID)
	if err := p.volumes.WaitForUnpublished(ctx, pod.UID); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, nameOf(pod))
	return nil
}

// GetPod returns a pod; one that is not there matches [volume.ErrNotFound].
// virtual-kubelet wants an errdefs.NotFound in its place.
func (p *Provider) GetPod(_ context.Context, namespace, name string) (*v1.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod, ok := p.pods[types.NamespacedName{Namespace: namespace, Name: name}]
	if !ok {
		return nil, fmt.Errorf("get: %w", &volume.ObjectNotFoundError{Ref: volume.NewObjectRef("Pod", namespace, name)})
	}
	return pod.DeepCopy(), nil
}

// PodsKnown says that CreatePod has been called for every pod of this node.
// Call it once after a start, when the API server's list of pods has been
// walked: what is left of pods that went meanwhile is torn down then, and not
// before.
func (p *Provider) PodsKnown() { p.volumes.PodsComplete() }

func (p *Provider) keep(pod *v1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods[nameOf(pod)] = pod.DeepCopy()
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}
