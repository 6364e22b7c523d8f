package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/volumemanager"
)

// keeper makes what manifests say the wish of a node: objects into the store
// that the node reads, claims bound, pods declared. One goroutine uses it.
type keeper struct {
	node     *volumemanager.Manager
	store    *objects.Store
	rootDir  string
	nodeName string
	say      func(string)

	objects map[volume.ObjectRef]metav1.Object // as the manifests had them last
	pods    map[types.UID]*v1.Pod              // wanted
	unbound atomic.Pointer[unboundClaims]      // of the last binding
	said    string                             // about claims, last
	refused map[types.UID]*v1.Pod              // the versions that the node has refused

	// declared are the pods that the node knows as they are wanted. Of any other
	// it only shows what was, or what another version wants: that is no reason
	// to tear anything down.
	declared map[types.UID]bool

	replacing map[types.UID]bool
	replaced  map[types.UID]*v1.Pod // the version that a pod was replaced for last
	gone      chan types.UID        // torn down, to be set up again
}

func newKeeper(node *volumemanager.Manager, store *objects.Store, rootDir, nodeName string, say func(string)) *keeper {
	return &keeper{
		node: node, store: store, rootDir: rootDir, nodeName: nodeName, say: say,
		objects: make(map[volume.ObjectRef]metav1.Object), pods: make(map[types.UID]*v1.Pod),
		refused: make(map[types.UID]*v1.Pod), declared: make(map[types.UID]bool), replacing: make(map[types.UID]bool), replaced: make(map[types.UID]*v1.Pod), gone: make(chan types.UID),
	}
}

// apply takes over what is wanted: objects come before the pods that need them,
// and go after them.
func (k *keeper) apply(ctx context.Context, want *contents) error {
	pods := make(map[types.UID]*v1.Pod, len(want.pods))
	for _, pod := range want.pods {
		pods[pod.UID] = pod
	}
	for uid := range k.pods {
		if pods[uid] == nil {
			k.node.DeletePod(uid)
			delete(k.refused, uid)
			delete(k.declared, uid)
		}
	}
	if err := k.putObjects(ctx, want.objects); err != nil {
		return err
	}
	held := k.bind(ctx, sortedPods(pods))
	k.pods = pods
	for _, pod := range sortedPods(pods) {
		if k.replacing[pod.UID] || held(pod) {
			delete(k.declared, pod.UID)
			continue
		}
		if err := k.declare(pod); err != nil {
			return err
		}
	}
	k.replaceLeftovers(ctx)
	return k.deleteObjects(ctx, want.objects)
}

func sortedPods(pods map[types.UID]*v1.Pod) []*v1.Pod {
	sorted := make([]*v1.Pod, 0, len(pods))
	for _, pod := range pods {
		sorted = append(sorted, pod)
	}
	slices.SortFunc(sorted, func(a, b *v1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return sorted
}

// putObjects creates and updates what has changed in the manifests since the
// last time.
func (k *keeper) putObjects(ctx context.Context, want map[volume.ObjectRef]metav1.Object) error {
	for ref, object := range want {
		if before, there := k.objects[ref]; there && equality.Semantic.DeepEqual(before, object) {
			continue
		}
		if err := k.putObject(ctx, ref, object); err != nil {
			return fmt.Errorf("%s: %w", ref, err)
		}
		k.objects[ref] = object
	}
	return nil
}

func (k *keeper) putObject(ctx context.Context, ref volume.ObjectRef, object metav1.Object) error {
	next := forStore(object)
	stored, err := k.store.Get(ctx, ref)
	switch {
	case errors.Is(err, volume.ErrNotFound):
		_, err = k.store.Create(ctx, next)
		return err
	case err != nil:
		return err
	case stored.GetUID() != next.GetUID(): // another object of that name
		if err := k.store.Delete(ctx, ref, objects.Preconditions{}); err != nil {
			return err
		}
		_, err = k.store.Create(ctx, next)
		return err
	}
	keepBinding(next, stored)
	if _, err := k.store.Update(ctx, next); err != nil {
		return err
	}
	if ref.Kind == "Node" { // whose status says what it has
		_, err = k.store.UpdateStatus(ctx, next)
	}
	return err
}

// forStore copies an object of a manifest without what only its cluster can
// deal with: nobody here would remove its finalizers.
func forStore(object metav1.Object) metav1.Object {
	c := object.(runtime.Object).DeepCopyObject().(metav1.Object)
	c.SetFinalizers(nil)
	c.SetDeletionTimestamp(nil)
	c.SetResourceVersion("")
	return c
}

// keepBinding keeps what the binder has written, where a manifest does not say
// otherwise.
func keepBinding(next, stored metav1.Object) {
	switch next := next.(type) {
	case *v1.PersistentVolumeClaim:
		old := stored.(*v1.PersistentVolumeClaim)
		if next.Spec.VolumeName == "" {
			next.Spec.VolumeName = old.Spec.VolumeName
		}
	case *v1.PersistentVolume:
		old := stored.(*v1.PersistentVolume)
		switch ref := next.Spec.ClaimRef; {
		case ref == nil:
			next.Spec.ClaimRef = old.Spec.ClaimRef.DeepCopy()
		case ref.UID == "" && old.Spec.ClaimRef != nil && ref.Namespace == old.Spec.ClaimRef.Namespace && ref.Name == old.Spec.ClaimRef.Name:
			ref.UID = old.Spec.ClaimRef.UID
		}
	default:
		return
	}
	annotations := next.GetAnnotations()
	for key, value := range stored.GetAnnotations() {
		if _, set := annotations[key]; !set && strings.HasPrefix(key, "pv.kubernetes.io/") {
			if annotations == nil {
				annotations = make(map[string]string)
			}
			annotations[key] = value
		}
	}
	next.SetAnnotations(annotations)
}

func (k *keeper) deleteObjects(ctx context.Context, want map[volume.ObjectRef]metav1.Object) error {
	for ref := range k.objects {
		if _, wanted := want[ref]; wanted {
			continue
		}
		if err := k.store.Delete(ctx, ref, objects.Preconditions{}); err != nil && !errors.Is(err, volume.ErrNotFound) {
			return err
		}
		delete(k.objects, ref)
	}
	return nil
}

// bind binds the pods' claims, and returns which pods must not be declared now:
// a node would mount volumes for them that are recorded as another claim's.
func (k *keeper) bind(ctx context.Context, pods []*v1.Pod) (held func(*v1.Pod) bool) {
	unbound, refused, err := bindPods(ctx, k.rootDir, k.nodeName, k.store, pods)
	k.unbound.Store(&unbound)
	lines := make([]string, 0, len(refused))
	if err != nil {
		lines = append(lines, err.Error())
	}
	for _, e := range refused {
		lines = append(lines, e.Error())
	}
	slices.Sort(lines)
	text := strings.Join(lines, "\n")
	if text != "" && text != k.said {
		k.say(text + "; the pods that use it are not mounted")
	}
	k.said = text
	return func(pod *v1.Pod) bool {
		return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool {
			if v.PersistentVolumeClaim == nil {
				return false
			}
			claim := types.NamespacedName{Namespace: pod.Namespace, Name: v.PersistentVolumeClaim.ClaimName}
			return err != nil || refused[claim] != nil
		})
	}
}

// explain completes a status by what is known of its claim.
func (k *keeper) explain(v *volumemanager.VolumeStatus) {
	if unbound := k.unbound.Load(); unbound != nil {
		v.Err = unbound.explain(v.Err)
	}
}

// replaceLeftovers replaces the pods that have a volume mounted that they do
// not want any more. What was found and not made by podvol is none: a set-up may
// find that the pod wants it by another name, and else it goes with the pod.
func (k *keeper) replaceLeftovers(ctx context.Context) {
	rows := k.node.Explain()
	for _, v := range rows {
		if !v.Wanted && !v.Found && k.pods[v.PodUID] != nil {
			k.replace(ctx, v.PodUID, rows)
		}
	}
}

// see replaces a pod that wants another source for a volume, unless what is
// there was found.
func (k *keeper) see(ctx context.Context, v volumemanager.VolumeStatus) {
	if _, other := errors.AsType[*volumemanager.ReplacedError](v.Err); other && v.Wanted && !v.Found {
		k.replace(ctx, v.PodUID, k.node.Explain())
	}
}

// replace tears a pod down and sets it up again as it is wanted then, as a
// kubelet restarts a static pod that has changed; once for each version. A pod
// with a record that cannot be read is kept: it could not be torn down to its
// end, and so would not come back. So is one that may not be declared now.
func (k *keeper) replace(ctx context.Context, uid types.UID, rows []volumemanager.VolumeStatus) {
	pod := k.pods[uid]
	if pod == nil || !k.declared[uid] || k.replacing[uid] || k.replaced[uid] == pod || slices.ContainsFunc(rows, func(v volumemanager.VolumeStatus) bool {
		return v.PodUID == uid && isUnreadable(v)
	}) {
		return
	}
	k.replacing[uid], k.replaced[uid] = true, pod
	k.say(fmt.Sprintf("pod %s/%s has other volumes than before: it is torn down and set up again", pod.Namespace, pod.Name))
	k.node.DeletePod(uid)
	delete(k.declared, uid)
	go func() {
		if k.node.WaitForUnmounted(ctx, uid) != nil {
			return // the command ends
		}
		select {
		case k.gone <- uid:
		case <-ctx.Done():
		}
	}()
}

func isUnreadable(v volumemanager.VolumeStatus) bool {
	_, unreadable := errors.AsType[*volumemanager.UnreadableRecordError](v.Err)
	return unreadable
}

// renew has a replaced pod declared again, by the next apply: its claims may have
// been refused meanwhile.
func (k *keeper) renew(uid types.UID) { delete(k.replacing, uid) }

// declare declares a pod. That one is refused is no reason to end for all others;
// it is said, once for each version.
func (k *keeper) declare(pod *v1.Pod) error {
	err := k.node.PutPod(pod)
	if err == nil {
		delete(k.refused, pod.UID)
		k.declared[pod.UID] = true
		return nil
	}
	delete(k.declared, pod.UID)
	if errors.Is(err, volumemanager.ErrStopped) {
		return err
	}
	if k.refused[pod.UID] != pod {
		k.refused[pod.UID] = pod
		k.say(fmt.Sprintf("pod %s/%s is refused, and its volumes stay as they are: %v", pod.Namespace, pod.Name, err))
	}
	return nil
}

// allDeclared reports whether the node knows all pods that are wanted: what one
// that it refuses, or must not be told of now, has mounted is not nobody's.
func (k *keeper) allDeclared() bool {
	for uid := range k.pods {
		if !k.declared[uid] {
			return false
		}
	}
	return true
}

// noContainers is the role that knows about containers, played for a program
// that runs none.
type noContainers struct{}

var _ volumemanager.PodContainers = noContainers{}

func (noContainers) ContainersGone(context.Context, types.UID) (bool, error) { return true, nil }

func (noContainers) WatchContainers(func(types.UID)) (stop func()) { return func() {} }
