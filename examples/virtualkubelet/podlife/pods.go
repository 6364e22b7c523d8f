package podlife

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/containerenv"
	"github.com/podvol/podvol/volume/containermounts"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager"
)

// Volumes is the volume manager, as far as pods need it.
type Volumes interface {
	PutPod(*v1.Pod) error
	DeletePod(types.UID)
	WaitForMounted(context.Context, types.UID) error
	WaitForUnpublished(context.Context, types.UID) error
	ContainerMounts(context.Context, types.UID, string, containermounts.Options) ([]containermounts.Mount, []containermounts.Device, error)
	ExtraSupplementalGroups(types.UID) []int64
}

// Config is what Pods needs. All fields are required.
type Config struct {
	API     kubernetes.Interface // writes the pods' statuses, and deletes pods for good
	Runtime Runtime
	Events  record.EventRecorder
	Log     *slog.Logger
	// NodeIP is the node's address, and that of pods that have none of their own.
	NodeIP string
	// RootDir is the root directory of the volumes.
	RootDir string
	// ImageRefs returns the images of a pod's image volumes, with digests, by the volumes' names.
	ImageRefs func(types.UID) (map[string]string, error)
	// FirstPause is the pause before a container's second restart; it doubles up to five
	// minutes. The kubelet's is 10 s.
	FirstPause time.Duration
}

// Pods are the pods of a node. All methods are safe for concurrent use.
type Pods struct {
	Config
	volumes Volumes
	env     containerenv.Sources
	objects objects.Source // nil: there are none
	ctx     context.Context
	running sync.WaitGroup

	lives  sync.Map // of types.UID: *life; the volume manager looks into it with its own lock held
	mu     sync.Mutex
	closed bool // mu: no life begins any more

	finished chan struct{} // receives a value after a life has finished

	watching sync.Mutex
	gone     func(types.UID)
}

// New returns Pods that have begun nothing. It is the volume manager's role
// volumemanager.PodContainers from then on.
func New(c Config) *Pods {
	return &Pods{Config: c, finished: make(chan struct{}, 1), gone: func(types.UID) {}}
}

var _ volumemanager.PodContainers = (*Pods)(nil)

// Begin has pods run until ctx ends, with these volumes, and with environments from source
// and size, which may be nil. It is called once, before any pod is put. Then containers stay as the runtime keeps
// them, and volumes stay mounted.
func (p *Pods) Begin(ctx context.Context, volumes Volumes, source objects.Source, size volume.AllocatableGetter) {
	p.ctx, p.volumes, p.objects = ctx, volumes, source
	p.env = containerenv.Sources{Objects: source, Allocatable: size, RootDir: p.RootDir}
}

// Wait waits for the end of all lives, after Begin's ctx has ended. No life begins any more.
func (p *Pods) Wait() {
	p.mu.Lock()
	p.closed = true // so that none begins beside the wait
	p.mu.Unlock()
	p.running.Wait()
}

// Put begins a pod's life, or tells it that the API server has the pod like this. It does
// not block. A pod with SourceAnnotation FromFile is a static pod, of which the API server
// is given a mirror.
func (p *Pods) Put(pod *v1.Pod) {
	if p.mirrorSeen(pod) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.ctx.Err() != nil {
		return
	}
	l, known := p.life(pod.UID)
	if !known {
		l = newLife(p, pod)
		p.lives.Store(pod.UID, l)
		if !isOver(pod) && pod.DeletionTimestamp == nil {
			l.unfit = p.Runtime.Check(pod)
			if l.unfit == nil {
				l.unfit = p.volumes.PutPod(pod)
			}
		}
		if pod.DeletionTimestamp != nil {
			l.end(gracePeriod(pod))
		}
		p.running.Go(func() { l.run(p.ctx) })
		return
	}
	if l.update(pod) {
		if err := p.volumes.PutPod(pod); err != nil {
			p.Log.Warn("a changed pod is not taken over", "pod", nameOf(pod), "error", err)
		}
	}
	if pod.DeletionTimestamp != nil {
		l.end(gracePeriod(pod))
	}
}

// Gone says that the API server has a pod no more. What is left of it ends.
func (p *Pods) Gone(pod *v1.Pod) {
	if p.mirrorSeen(pod) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	l, known := p.life(pod.UID)
	switch {
	case !known:
	case l.isFinished():
		p.lives.Delete(pod.UID)
	default:
		l.objectGone = true
		l.end(gracePeriod(pod))
	}
}

// finish forgets a life that has ended. Until the API server has the pod no more it is
// kept, so that no late news begins another one.
func (p *Pods) finish(l *life) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l.set(func() { l.finished = true })
	if l.objectGone {
		p.lives.Delete(l.uid)
	}
	select {
	case p.finished <- struct{}{}:
	default:
	}
}

// Handler follows the informer of the node's pods. Changed is called when the set of
// pods has become smaller.
func (p *Pods) Handler(changed func()) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { p.Put(object.(*v1.Pod)) },
		UpdateFunc: func(old, new any) {
			was, pod := old.(*v1.Pod), new.(*v1.Pod)
			if was.UID != pod.UID { // its end was not heard of
				p.Gone(was)
				changed()
			}
			p.Put(pod)
		},
		DeleteFunc: func(object any) {
			if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = tombstone.Obj
			}
			p.Gone(object.(*v1.Pod))
			changed()
		},
	}
}

// RemoveUnknown ends and removes what the runtime has of pods that have no life here, or whose
// life has finished, and returns when that is done or ctx has ended. All pods of the API
// server must have been put.
func (p *Pods) RemoveUnknown(ctx context.Context) {
	var left []types.UID
	if !p.until(ctx, "the pods of an earlier start cannot be listed", func() (err error) {
		left, err = p.Runtime.Pods(ctx)
		return err
	}) {
		return
	}
	var all sync.WaitGroup
	for _, pod := range left {
		if l, known := p.life(pod); known && !l.isFinished() {
			continue
		}
		all.Go(func() {
			if p.until(ctx, "a pod of an earlier start does not end", func() error { return p.Runtime.StopPod(ctx, pod) }) {
				p.tellGone(pod)
				p.until(ctx, "a pod of an earlier start is not removed", func() error { return p.Runtime.RemovePod(ctx, pod) })
			}
		})
	}
	all.Wait()
}

// RemoveLate does so again and again, until ctx ends: a runtime may go on with a call that was
// cut off, as by the end of an earlier start, after the pod was removed. It looks whenever
// appeared, which may be nil, tells of a pod in the runtime, and after the end of each life,
// since the pod may have come during that end.
func (p *Pods) RemoveLate(ctx context.Context, appeared <-chan struct{}) {
	for {
		select {
		case <-appeared:
		case <-p.finished:
		case <-ctx.Done():
			return
		}
		p.RemoveUnknown(ctx)
	}
}

// until tries until there is no error, or ctx has ended, and reports the former.
func (p *Pods) until(ctx context.Context, what string, try func() error) bool {
	pause := retry.Pause{First: 100 * time.Millisecond, Last: 10 * time.Second}
	for {
		err := try()
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		p.Log.Warn(what, "error", err)
		if !pause.Wait(ctx) {
			return false
		}
	}
}

// VolumeChanged is told of every attempt at a volume (volumemanager's Subscribe), and
// does not block.
func (p *Pods) VolumeChanged(s volumemanager.VolumeStatus) {
	if l, ok := p.life(s.PodUID); ok && s.Ended != "" {
		l.volumeChanged(s.Volume, s.Ended, s.Err)
	}
}

// ContainersGone tells podvol whether a pod's volumes may go. Of pods that this
// process does not know, containers may be left that an earlier one has started.
func (p *Pods) ContainersGone(ctx context.Context, pod types.UID) (bool, error) {
	if l, ok := p.life(pod); ok {
		return l.isOver(), nil
	}
	err := p.Runtime.StopPod(ctx, pod)
	return err == nil, err
}

// WatchContainers has podvol told when that may have changed.
func (p *Pods) WatchContainers(f func(types.UID)) (stop func()) {
	set := func(f func(types.UID)) {
		p.watching.Lock()
		defer p.watching.Unlock()
		p.gone = f
	}
	set(f)
	return func() { set(func(types.UID) {}) }
}

func (p *Pods) tellGone(pod types.UID) {
	p.watching.Lock()
	defer p.watching.Unlock()
	p.gone(pod)
}

func (p *Pods) life(pod types.UID) (*life, bool) {
	l, ok := p.lives.Load(pod)
	if !ok {
		return nil, false
	}
	return l.(*life), true
}

// List returns the pods as they are now, with their statuses, without those that have
// ended and gone.
func (p *Pods) List() []*v1.Pod {
	var pods []*v1.Pod
	for _, l := range p.lives.Range {
		if l := l.(*life); !l.isFinished() {
			pods = append(pods, l.snapshot())
		}
	}
	slices.SortFunc(pods, func(a, b *v1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return pods
}

func nameOf(pod *v1.Pod) types.NamespacedName {
	return types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
}

func isOver(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// gracePeriod is that of the deletion, or else the pod's own.
func gracePeriod(pod *v1.Pod) time.Duration {
	seconds := int64(v1.DefaultTerminationGracePeriodSeconds)
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		seconds = *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	return secondsOf(seconds)
}

// secondsOf is a number of seconds of the API, which may be more than a [time.Duration]
// can hold: that is about 290 years then.
func secondsOf(n int64) time.Duration {
	const longest = int64(math.MaxInt64 / time.Second)
	return time.Duration(min(max(n, 0), longest)) * time.Second
}
