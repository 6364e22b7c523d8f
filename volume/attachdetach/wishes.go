package attachdetach

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
	"github.com/podvol/podvol/volume/internal/podspec"
	"github.com/podvol/podvol/volume/internal/pvapi"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/podstate"
)

// podWishes are the volumes that a pod wants attached to its node.
type podWishes struct {
	pod     *v1.Pod
	node    types.NodeName
	volumes map[v1.UniqueVolumeName]*wanted
	// refs are the objects that they were read from.
	refs map[volume.ObjectRef]bool
	// unsure: there may be more.
	unsure bool
}

// wanted is one volume of a pod.
type wanted struct {
	spec *volume.Spec
	kind attachable
	// attaches: it must be attached. Else it only stays attached, if it is: its driver has
	// ceased to need that while it was mounted, or its node to translate it.
	attaches bool
	// untranslated is why a volume of an in-tree type is not attached; empty: its node
	// translates it, or it is none.
	untranslated string
	// listed: the node is told that it is attached, and there is no VolumeAttachment, as none can
	// be made: it is an inline volume of a plugin. Any number of nodes may have it.
	listed bool
}

// wishes are those of all pods.
type wishes struct {
	mu      sync.Mutex
	pods    map[types.NamespacedName]*podWishes
	volumes map[v1.UniqueVolumeName]map[types.NamespacedName]*podWishes
	nodes   map[types.NodeName]map[types.NamespacedName]*podWishes
	refs    map[volume.ObjectRef]map[types.NamespacedName]*podWishes
}

func newWishes() *wishes {
	return &wishes{
		pods:    make(map[types.NamespacedName]*podWishes),
		volumes: make(map[v1.UniqueVolumeName]map[types.NamespacedName]*podWishes),
		nodes:   make(map[types.NodeName]map[types.NamespacedName]*podWishes),
		refs:    make(map[volume.ObjectRef]map[types.NamespacedName]*podWishes),
	}
}

// put replaces what the pod of a name wants; nil: it wants nothing. It returns the wishes
// before, nil if there were none.
func (w *wishes) put(name types.NamespacedName, now *podWishes) (prior *podWishes) {
	w.mu.Lock()
	defer w.mu.Unlock()
	prior = w.pods[name]
	if prior != nil {
		delete(w.pods, name)
		remove(w.nodes, prior.node, name)
		for v := range prior.volumes {
			remove(w.volumes, v, name)
		}
		for ref := range prior.refs {
			remove(w.refs, ref, name)
		}
	}
	if now == nil {
		return prior
	}
	w.pods[name] = now
	add(w.nodes, now.node, name, now)
	for v := range now.volumes {
		add(w.volumes, v, name, now)
	}
	for ref := range now.refs {
		add(w.refs, ref, name, now)
	}
	return prior
}

func add[K, N comparable, V any](all map[K]map[N]V, k K, name N, value V) {
	if all[k] == nil {
		all[k] = make(map[N]V)
	}
	all[k][name] = value
}

func remove[K, N comparable, V any](all map[K]map[N]V, k K, name N) {
	delete(all[k], name)
	if len(all[k]) == 0 {
		delete(all, k)
	}
}

// of returns who wants a volume, in the order of the pods' age.
func (w *wishes) of(name v1.UniqueVolumeName) []*podWishes {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(maps.Values(w.volumes[name]), byAge)
}

func byAge(a, b *podWishes) int {
	if c := a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time); c != 0 {
		return c
	}
	if a.pod.Namespace != b.pod.Namespace {
		return compareText(a.pod.Namespace, b.pod.Namespace)
	}
	return compareText(a.pod.Name, b.pod.Name)
}

// note has a pod depend on an object, before put.
func (w *wishes) note(ref volume.ObjectRef, now *podWishes) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now.refs[ref] = true
	add(w.refs, ref, podspec.Name(now.pod), now)
}

// using returns the pods that depend on an object.
func (w *wishes) using(ref volume.ObjectRef) (pods []volume.ObjectRef) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name := range w.refs[ref] {
		pods = append(pods, volume.ObjectRef{Kind: pvapi.KindPod, NamespacedName: name})
	}
	return pods
}

// volumesOn returns the volumes that pods of a node want.
func (w *wishes) volumesOn(node types.NodeName) (names []v1.UniqueVolumeName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.nodes[node] {
		names = slices.AppendSeq(names, maps.Keys(p.volumes))
	}
	return names
}

// isUnsureOn reports whether it is not known of a pod of a node what it wants.
func (w *wishes) isUnsureOn(node types.NodeName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.nodes[node] {
		if p.unsure {
			return true
		}
	}
	return false
}

// syncPod finds out what a pod wants.
func (c *Controller) syncPod(ctx context.Context, ref volume.ObjectRef) error {
	pod, err := objects.Get[*v1.Pod](ctx, c.objects, ref)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		c.replaceWishes(ref.NamespacedName, nil)
		return nil
	case err != nil:
		return err
	}
	return c.takePod(ctx, pod)
}

// takePod notes what a pod wants. With an error that is not known for all of its volumes:
// none is detached from its node then.
func (c *Controller) takePod(ctx context.Context, pod *v1.Pod) error {
	name := podspec.Name(pod)
	if pod.Spec.NodeName == "" || podstate.HasEnded(pod) {
		c.replaceWishes(name, nil)
		return nil
	}
	now := &podWishes{pod: pod, node: types.NodeName(pod.Spec.NodeName), volumes: make(map[v1.UniqueVolumeName]*wanted), refs: make(map[volume.ObjectRef]bool)}
	var errs []error
	for i := range pod.Spec.Volumes {
		if err := c.takeVolume(ctx, now, &pod.Spec.Volumes[i]); err != nil {
			now.unsure = true
			errs = append(errs, err)
		}
	}
	c.replaceWishes(name, now)
	return errors.Join(errs...)
}

// takeVolume adds a volume of a pod, if that must be attached.
func (c *Controller) takeVolume(ctx context.Context, now *podWishes, v *v1.Volume) error {
	if _, isClaim := claimbinding.ClaimOf(now.pod, v); !isClaim && c.translator == nil && c.plugins == nil {
		return nil // no inline volume is attached
	}
	source := noting{c.objects, c.wishes, now}
	spec, err := podspec.Resolve(ctx, source, string(now.node), now.pod, v)
	if err != nil {
		if isSettled(err) {
			return nil
		}
		return err
	}
	original := spec
	spec, err = c.plugins.Translate(c.translator, spec, now.pod.Namespace)
	if err != nil {
		return nil
	}
	if spec.PersistentVolume == nil {
		return c.takeInline(ctx, now, spec)
	}
	kind, name, err := c.kindOf(spec)
	if kind == nil || err != nil {
		return nil // bad names are refused by the node, which tells the pod
	}
	w := &wanted{spec: spec, kind: kind}
	if w.attaches, err = kind.attaches(ctx, source, spec); err != nil {
		return err
	}
	if w.attaches && spec.Migrated {
		if w.untranslated, err = whyUntranslated(ctx, source, now.node, c.translator.Plugin(original)); err != nil {
			return err
		}
		w.attaches = w.untranslated == ""
	}
	now.volumes[name] = w
	return nil
}

// isSettled reports whether an error says for sure that there is no volume to attach now.
func isSettled(err error) bool {
	_, unbound := errors.AsType[*claimbinding.Error](err)
	_, invalid := errors.AsType[*volume.InvalidSpecError](err)
	return unbound || invalid || errors.Is(err, volume.ErrNotFound) || errors.Is(err, podspec.ErrNodeAffinity)
}

// replaceWishes notes what a pod wants now, and enqueues the volumes that it wants, and has
// wanted.
func (c *Controller) replaceWishes(name types.NamespacedName, now *podWishes) {
	prior := c.wishes.put(name, now)
	if prior != nil {
		c.enqueueVolumes(slices.Collect(maps.Keys(prior.volumes)))
		if now == nil || now.pod.UID != prior.pod.UID {
			c.tell.forget(prior.pod.UID)
		}
		if prior.unsure && (now == nil || !now.unsure) {
			c.enqueueVolumes(c.attached.volumesOn(prior.node))
			c.queue.Enqueue(key{object: nodeRef(prior.node)})
		}
		if prior.hasListed() {
			c.queue.Enqueue(key{object: nodeRef(prior.node)})
		}
	}
	if now != nil {
		c.enqueueVolumes(slices.Collect(maps.Keys(now.volumes)))
		if now.hasListed() {
			c.queue.Enqueue(key{object: nodeRef(now.node)})
		}
	}
}

// noting is a source that notes what a pod's wishes are read from, before that is read: a
// change that comes meanwhile enqueues the pod, too.
type noting struct {
	objects.Source
	wishes *wishes
	now    *podWishes
}

func (n noting) Get(ctx context.Context, ref volume.ObjectRef) (metav1.Object, error) {
	n.wishes.note(ref, n.now)
	return n.Source.Get(ctx, ref)
}
