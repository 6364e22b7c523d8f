package podfiles

import (
	"context"
	"errors"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/payload"
	"github.com/podvol/podvol/volume/internal/work"
	"github.com/podvol/podvol/volume/objects"
)

// WatchSources are [Sources] that tell of changes.
type WatchSources struct {
	// Objects has the objects, and the pod too, if its labels and annotations may change;
	// else it says of the pod that it does not exist ([volume.ErrNotFound]).
	Objects objects.Source
	// Tokens, PodCertificates, TrustBundles and Allocatable are as of [Sources]. Changes of trust bundles
	// are those that TrustBundles tells of, as a [volume.TrustBundleWatcher], else
	// those of Objects.
	Tokens          volume.TokenRequester
	PodCertificates volume.PodCertificateRequester
	TrustBundles    volume.TrustBundleGetter
	Allocatable     volume.AllocatableGetter
	// Events is as of [Sources].
	Events volume.EventSink
	// Options are as for [Render].
	Options Options
}

// Follow renders each volume of the pod that has files, calls f with each set, and does so
// again after each change of an object, and before a token in it expires. It returns nil
// when ctx has ended and f has returned; what it watched is not watched any more then. The
// error is that of [Render] for a manifest that cannot be; f was not called then.
//
//   - f is called for one volume after the other, never concurrently. The set is f's.
//   - f is called only if the files have changed, or after an error.
//   - With an error, s is nil: the volume cannot be rendered now, and the files that f had
//     are the newest that there are. It is tried again after a pause that grows to two
//     minutes, and at once when an object changes that the volume depends on. f is called
//     for each attempt that fails.
//   - A token that cannot be renewed in time stays while it is valid; Events is told.
//
// The pod is not changed. For a volume that shows them, its labels, annotations and status are
// read anew from Objects while that has a pod of the same UID; once it has none, they stay.
// The pod's volumes are those that were given.
func Follow(ctx context.Context, pod *v1.Pod, from WatchSources, f func(volumeName string, s *Set, err error)) error {
	w := &follower{pod: pod.DeepCopy(), from: from, call: f, volumes: make(map[string]*followed)}
	w.queue = work.NewQueue(work.Config[string]{Reconcile: w.reconcile, FirstPause: work.OperationPause})
	names, err := w.prepare()
	if err != nil {
		return err
	}
	for _, name := range names {
		defer w.watch(name)()
		w.queue.Enqueue(name)
	}
	w.queue.Start(ctx)
	<-ctx.Done()
	w.queue.Wait()
	return nil
}

// follower follows the volumes of one pod.
type follower struct {
	pod     *v1.Pod
	from    WatchSources
	queue   *work.Queue[string]
	issued  payload.Issued
	volumes map[string]*followed // by name; the map does not change

	mu   sync.Mutex // held while call is called
	call func(string, *Set, error)
}

// followed is what was found out about one volume. Only its own reconcile changes it.
type followed struct {
	dependsOn []volume.ObjectRef
	pod       *v1.Pod // as it was last known
	last      *Set    // nil: none, or it failed since
}

// prepare refuses a pod with a volume that cannot be, and returns the names of those that
// have files.
func (w *follower) prepare() (names []string, err error) {
	if w.pod == nil {
		return nil, failed(nil, "", volume.Invalid("pod", "is missing"))
	}
	if w.from.Objects == nil {
		return nil, failed(w.pod, "", volume.Invalid("Objects", "must say where API objects come from"))
	}
	var faults []error
	for _, name := range fileVolumes(w.pod) {
		projection, err := projectionOf(w.pod, name)
		if err != nil {
			faults = append(faults, failed(w.pod, name, err))
			continue
		}
		names = append(names, name)
		w.volumes[name] = &followed{dependsOn: projection.DependsOn(w.pod), pod: w.pod}
	}
	return names, errors.Join(faults...)
}

// watch has a volume rendered again after changes of what it depends on.
func (w *follower) watch(name string) (stop func()) {
	var stops []func()
	for _, ref := range w.volumes[name].dependsOn {
		stops = append(stops, objects.WatchRef(w.from.Objects, w.from.TrustBundles, ref, func() { w.queue.Enqueue(name) }))
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// reconcile renders one volume and tells of news.
func (w *follower) reconcile(ctx context.Context, name string) work.Result {
	v := w.volumes[name]
	s, err := w.render(ctx, v, name)
	if ctx.Err() != nil {
		return work.Result{}
	}
	if err != nil {
		v.last = nil
		w.tell(name, nil, err)
		return work.Result{Reason: err}
	}
	if v.last == nil || !v.last.Equal(s) {
		v.last = s.clone()
		w.tell(name, s, nil)
	}
	return work.Result{At: s.RefreshAfter}
}

func (w *follower) tell(name string, s *Set, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.call(name, s, err)
}

func (w *follower) render(ctx context.Context, v *followed, name string) (*Set, error) {
	if err := w.readPod(ctx, v); err != nil {
		return nil, failed(w.pod, name, err)
	}
	from := Sources{Objects: w.from.Objects, Tokens: w.from.Tokens, PodCertificates: w.from.PodCertificates, TrustBundles: w.from.TrustBundles, Allocatable: w.from.Allocatable, Events: w.from.Events}
	return render(ctx, v.pod, name, from, w.from.Options, &w.issued)
}

// readPod reads what may have changed of the pod, for a volume that shows it. A look-up that
// fails says nothing about the pod, so the volume is tried again.
func (w *follower) readPod(ctx context.Context, v *followed) error {
	ref := volume.NewObjectRef("Pod", w.pod.Namespace, w.pod.Name)
	if !slices.Contains(v.dependsOn, ref) {
		return nil
	}
	now, err := objects.Get[*v1.Pod](ctx, w.from.Objects, ref)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		return nil
	case err != nil:
		return err
	case now.UID != w.pod.UID:
		return nil // another pod of that name
	}
	pod := *w.pod
	pod.Labels, pod.Annotations, pod.Status = now.Labels, now.Annotations, now.Status
	v.pod = &pod
	return nil
}
