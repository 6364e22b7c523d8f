package attachdetach_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
)

// agent is a node's: it reports what it uses, and mounts what is attached.
type agent struct {
	w     *world
	node  string
	queue *work.Queue[string]

	mu  sync.Mutex
	off bool // hung, or without power
}

func newAgent(ctx context.Context, w *world, node string) *agent {
	a := &agent{w: w, node: node}
	a.queue = work.NewQueue(work.Config[string]{Reconcile: func(ctx context.Context, _ string) work.Result { return work.Result{Reason: a.sync(ctx)} }})
	wake := func(volume.ObjectRef) { a.queue.Enqueue(node) }
	w.store.WatchKind("Pod", wake)
	w.store.Watch(volume.NewObjectRef("Node", "", node), wake)
	a.queue.Start(ctx)
	return a
}

func (a *agent) setOff(off bool) {
	a.mu.Lock()
	a.off = off
	a.mu.Unlock()
	if !off {
		a.queue.Enqueue(a.node)
	}
}

func (a *agent) isOff() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.off
}

// mount mounts a disk, unless the node was switched off meanwhile.
func (a *agent) mount(disk string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.off {
		a.w.backend.mount(disk, a.node)
	}
}

// wanted are the disks of the node's pods, and the pods that are to go.
func (a *agent) wanted(ctx context.Context) (disks map[string]bool, leaving []*v1.Pod, err error) {
	disks = make(map[string]bool)
	pods, err := objects.List[*v1.Pod](ctx, a.w.store, "Pod", "")
	for _, pod := range pods {
		switch {
		case pod.Spec.NodeName != a.node || pod.Status.Phase == v1.PodSucceeded && pod.DeletionTimestamp == nil:
		case pod.DeletionTimestamp != nil:
			leaving = append(leaving, pod)
		default:
			for _, v := range pod.Spec.Volumes {
				disks[v.Name] = true
			}
		}
	}
	return disks, leaving, err
}

func (a *agent) sync(ctx context.Context) error {
	disks, leaving, err := a.wanted(ctx)
	if a.isOff() || err != nil {
		return err
	}
	node, err := a.report(ctx, disks)
	if node == nil || err != nil {
		return err
	}
	for _, attached := range node.Status.VolumesAttached {
		disk := strings.TrimPrefix(string(attached.Name), string(uniqueName("")))
		if disks[disk] && slices.Contains(node.Status.VolumesInUse, attached.Name) && !slices.Contains(a.w.backend.mountsOf(a.node), disk) {
			a.mount(disk)
		}
	}
	for _, disk := range a.w.backend.mountsOf(a.node) {
		if !disks[disk] {
			time.Sleep(slowness)
			if a.isOff() {
				return nil
			}
			a.w.backend.unmount(disk, a.node)
			defer a.queue.Enqueue(a.node)
		}
	}
	for _, pod := range leaving {
		a.w.letGo(pod.Name)
	}
	return nil
}

// report writes what is in use, and returns the Node that the mounts are based on; nil: it is
// gone.
func (a *agent) report(ctx context.Context, disks map[string]bool) (*v1.Node, error) {
	node, err := objects.Get[*v1.Node](ctx, a.w.store, volume.NewObjectRef("Node", "", a.node))
	if err != nil {
		return nil, nil
	}
	inUse := make(map[v1.UniqueVolumeName]bool)
	for disk := range disks {
		inUse[uniqueName(disk)] = true
	}
	for _, disk := range a.w.backend.mountsOf(a.node) {
		inUse[uniqueName(disk)] = true
	}
	next := node.DeepCopy()
	next.Status.VolumesInUse = slices.Sorted(maps.Keys(inUse))
	if slices.Equal(next.Status.VolumesInUse, node.Status.VolumesInUse) {
		return node, nil
	}
	stored, err := a.w.store.UpdateStatus(ctx, next)
	if err != nil {
		return nil, err
	}
	return stored.(*v1.Node), nil
}
