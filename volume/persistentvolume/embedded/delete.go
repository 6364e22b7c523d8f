package embedded

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/retry"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume"
)

// deletionFinalizer keeps a volume that is being deleted until its storage has
// been, as in Kubernetes.
const deletionFinalizer = "kubernetes.io/pv-controller"

// inUse says which pods, and which users beside the node, such as a podvol run, use a
// claim or a volume that is to go.
func inUse(ref volume.ObjectRef, pods []types.NamespacedName, beside []Mounted) error {
	var users []string
	next := "end that first"
	for _, user := range beside {
		users = append(users, user.who())
	}
	if len(pods) > 0 {
		names := make([]string, len(pods))
		for i, pod := range pods {
			names[i] = pod.String()
		}
		users = append(users, "pod "+strings.Join(names, ", "))
		next = "unmount it first"
	}
	what := fmt.Sprintf("%s is in use by %s: %s", ref, strings.Join(users, " and by "), next)
	return &volume.Failure{Cause: ErrInUse, Subject: ref.String(), What: what}
}

// refused says why a volume must not be deleted, or not be released, as op says.
func refused(ref volume.ObjectRef, op, reason string) error {
	return &volume.Failure{Cause: ErrRefused, Subject: ref.String(), What: fmt.Sprintf("%s cannot be %s: %s", ref, op, reason)}
}

// Delete deletes a claim, or a volume that is no claim's, whatever program has applied it.
// It only begins that: the controller does the rest while the cluster runs and the pods are
// complete, and has done it when [Cluster.Idle] returns. Then a claim is gone, and its
// volume is as its reclaim policy says. A released volume's storage goes before the volume.
//
// A claim or volume that a pod uses, applied or mounted, is [ErrInUse]. A volume whose
// claim exists, or another kind of object, is [ErrRefused]; a missing one is
// [volume.ErrNotFound]. Then nothing has changed.
func (c *Cluster) Delete(ctx context.Context, ref volume.ObjectRef) error {
	return c.latest(ctx, ref, func(object metav1.Object) error {
		if err := c.checks().delete(ctx, ref, object); err != nil || object.GetDeletionTimestamp() != nil {
			return err
		}
		if pv, ok := object.(*v1.PersistentVolume); ok {
			var err error
			if object, err = c.withStorage(ctx, pv); err != nil {
				return err
			}
		}
		return c.objects.Delete(ctx, ref, objects.Preconditions{UID: object.GetUID(), ResourceVersion: object.GetResourceVersion()})
	})
}

// latest calls f with a stored object, and again where the controller has written it
// meanwhile. Another object of that name is not the one that the user has meant.
func (c *Cluster) latest(ctx context.Context, ref volume.ObjectRef, f func(metav1.Object) error) error {
	var first metav1.Object
	return retry.Do(ctx, objects.ErrConflict, func() error {
		object, err := objects.Live(c.objects).Get(ctx, ref)
		if err != nil {
			return err
		}
		if first == nil {
			first = object
		}
		if object.GetUID() != first.GetUID() {
			return &volume.ObjectNotFoundError{Ref: ref}
		}
		return f(object)
	})
}

// Forget deletes a volume that is no claim's, as [Cluster.Delete] does, but
// leaves its storage where it is, whatever its reclaim policy says: for storage
// that cannot be deleted, such as on a server that is no more. A deletion that
// was begun before is not undone. The errors are Delete's. A volume that a crash
// leaves over keeps its data and has reclaim policy Retain.
func (c *Cluster) Forget(ctx context.Context, name string) error {
	ref := volume.NewObjectRef(kindVolume, "", name)
	return c.latest(ctx, ref, func(object metav1.Object) error {
		if err := c.checks().delete(ctx, ref, object); err != nil {
			return err
		}
		next := object.(*v1.PersistentVolume).DeepCopy()
		next.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == deletionFinalizer })
		kept, err := c.objects.Update(ctx, next)
		if err != nil || kept.GetDeletionTimestamp() != nil {
			return err
		}
		return c.objects.Delete(ctx, ref, objects.Preconditions{UID: kept.GetUID(), ResourceVersion: kept.GetResourceVersion()})
	})
}

func (c *Cluster) checks() Checks {
	return Checks{Objects: objects.Live(c.objects), Mounted: c.allMounted}
}

// withStorage marks a volume that is to be deleted so that its storage goes first,
// if it is to.
func (c *Cluster) withStorage(ctx context.Context, pv *v1.PersistentVolume) (metav1.Object, error) {
	if !persistentvolume.DeletesStorage(pv, c.plugins.Plugins()) || slices.Contains(pv.Finalizers, deletionFinalizer) {
		return pv, nil
	}
	next := pv.DeepCopy()
	next.Finalizers = append(next.Finalizers, deletionFinalizer)
	return c.objects.Update(ctx, next)
}

// Release takes the claim of a released volume away, whose data was kept: it is
// available then, and the next claim that it fits gets it, with the data. The
// errors are [Cluster.Delete]'s. A volume that is not released, or whose data is
// to be deleted or was, even in part, is [ErrRefused].
func (c *Cluster) Release(ctx context.Context, name string) error {
	return c.latest(ctx, volume.NewObjectRef(kindVolume, "", name), func(metav1.Object) error {
		pv, err := c.checks().releasable(ctx, name)
		if err != nil {
			return err
		}
		next := pv.DeepCopy()
		next.Spec.ClaimRef = nil
		delete(next.Annotations, "pv.kubernetes.io/bound-by-controller")
		_, err = c.objects.Update(ctx, next)
		return err
	})
}
