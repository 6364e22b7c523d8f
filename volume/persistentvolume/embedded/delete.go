package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// deletionFinalizer keeps a volume that is being deleted until its storage has
// been, as in Kubernetes.
const deletionFinalizer = "kubernetes.io/pv-controller"

// InUseError says which pods use a claim or a volume that is to go.
type InUseError struct {
	Ref volume.ObjectRef
	// Pods are in order; there may be none where there are Users.
	Pods []types.NamespacedName
	// Users are those who use it beside the node, such as a podvol run.
	Users []Mounted
}

func (e *InUseError) Error() string {
	var users []string
	todo := "end that first"
	for _, user := range e.Users {
		users = append(users, user.who())
	}
	if len(e.Pods) > 0 {
		names := make([]string, len(e.Pods))
		for i, pod := range e.Pods {
			names[i] = pod.String()
		}
		users = append(users, "pod "+strings.Join(names, ", "))
		todo = "unmount it first"
	}
	return fmt.Sprintf("%s is in use by %s: %s", e.Ref, strings.Join(users, " and by "), todo)
}

// RefusedError says why a volume must not be deleted, or not be released.
type RefusedError struct {
	Ref volume.ObjectRef
	// Op is "deleted" or "released", Reason what was found and what to do.
	Op, Reason string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("%s cannot be %s: %s", e.Ref, e.Op, e.Reason)
}

// Delete deletes a claim, or a volume that is no claim's, whoever has applied
// it. It only begins that: what follows, the controller does while the cluster
// runs and the pods are complete, and has done when [Cluster.Idle] returns. Then
// a claim is gone, and its volume is what its reclaim policy says. The storage of
// a released volume whose policy is Delete goes before the volume does.
//
// What pods use, be it that they are applied or that something is mounted for
// them, is not deleted: *[InUseError]. Nor is a volume whose claim exists:
// *[RefusedError]. What does not exist is [volume.ErrNotFound]. Nothing has
// changed then.
func (c *Cluster) Delete(ctx context.Context, ref volume.ObjectRef) error {
	object, err := objects.Live(c.objects).Get(ctx, ref)
	if err != nil {
		return err
	}
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		err = c.checkUnused(ctx, ref, o.Spec.VolumeName)
	case *v1.PersistentVolume:
		if object, err = c.deletable(ctx, ref, o); err != nil {
			return err
		}
	}
	if err != nil || object.GetDeletionTimestamp() != nil {
		return err
	}
	return c.objects.Delete(ctx, ref, objects.Preconditions{UID: object.GetUID(), ResourceVersion: object.GetResourceVersion()})
}

// deletable returns a volume that may be deleted, marked so that its storage goes
// first, if it is to.
func (c *Cluster) deletable(ctx context.Context, ref volume.ObjectRef, pv *v1.PersistentVolume) (metav1.Object, error) {
	if err := c.checkLeft(ctx, ref, pv, "deleted"); err != nil {
		return nil, err
	}
	if pv.DeletionTimestamp != nil || !c.hasStorageToDelete(pv) || slices.Contains(pv.Finalizers, deletionFinalizer) {
		return pv, nil
	}
	next := pv.DeepCopy()
	next.Finalizers = append(next.Finalizers, deletionFinalizer)
	return c.objects.Update(ctx, next)
}

// hasStorageToDelete reports whether this cluster is to delete the storage of a
// volume, as of one that a claim has left.
func (c *Cluster) hasStorageToDelete(pv *v1.PersistentVolume) bool {
	if pv.Spec.PersistentVolumeReclaimPolicy != v1.PersistentVolumeReclaimDelete || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
		return false
	}
	provisioner := pv.Annotations["pv.kubernetes.io/provisioned-by"]
	if provisioner == "" || strings.HasPrefix(provisioner, "kubernetes.io/") {
		return true
	}
	_, err := c.plugins.FindPluginByName(provisioner)
	return err == nil
}

// Release takes the claim of a released volume away, whose data was kept: it is
// available then, and the next claim that it fits gets it, with the data. The
// errors are those of [Cluster.Delete]; a volume that is not released, or whose
// data is to be deleted or was, maybe in part, is a *[RefusedError].
func (c *Cluster) Release(ctx context.Context, name string) error {
	ref := volume.NewObjectRef(kindVolume, "", name)
	pv, err := objects.Get[*v1.PersistentVolume](ctx, objects.Live(c.objects), ref)
	if err != nil {
		return err
	}
	if err := c.checkLeft(ctx, ref, pv, "released"); err != nil {
		return err
	}
	if reason := notReleasable(pv); reason != "" {
		return &RefusedError{ref, "released", reason}
	}
	next := pv.DeepCopy()
	next.Spec.ClaimRef = nil
	delete(next.Annotations, "pv.kubernetes.io/bound-by-controller")
	_, err = c.objects.Update(ctx, next)
	return err
}

func notReleasable(pv *v1.PersistentVolume) string {
	switch policy := pv.Spec.PersistentVolumeReclaimPolicy; {
	case pv.DeletionTimestamp != nil:
		return "it is being deleted"
	case pv.Spec.ClaimRef == nil:
		return "no claim has it"
	case pv.Status.Phase != v1.VolumeReleased:
		return fmt.Sprintf("its phase is %s; only one is that its claim has left", pv.Status.Phase)
	case policy != v1.PersistentVolumeReclaimRetain && policy != "":
		return fmt.Sprintf("its reclaim policy is %s, so that its data may be gone in part", policy)
	}
	return ""
}

// checkLeft makes sure that neither a claim nor a pod has a volume.
func (c *Cluster) checkLeft(ctx context.Context, ref volume.ObjectRef, pv *v1.PersistentVolume, op string) error {
	if claim := pv.Spec.ClaimRef; claim != nil && claim.UID != "" {
		name := volume.NewObjectRef(kindClaim, claim.Namespace, claim.Name)
		stored, err := objects.Get[*v1.PersistentVolumeClaim](ctx, objects.Live(c.objects), name)
		if err != nil && !errors.Is(err, volume.ErrNotFound) {
			return err
		}
		if err == nil && stored.UID == claim.UID && (stored.Spec.VolumeName == "" || stored.Spec.VolumeName == pv.Name) {
			return &RefusedError{ref, op, fmt.Sprintf("it is that of %s; delete that first", name)}
		}
	}
	return c.checkUnused(ctx, ref, pv.Name)
}

// checkUnused makes sure that no pod uses a claim or volume, also one that
// nobody has declared.
func (c *Cluster) checkUnused(ctx context.Context, ref volume.ObjectRef, volumeName string) error {
	all, err := c.allMounted(ctx)
	if err != nil {
		return fmt.Errorf("nobody can tell whether %s is mounted here, so it counts as used: %w", ref, err)
	}
	failed := &InUseError{Ref: ref}
	users := make(map[types.NamespacedName]bool)
	for _, m := range all {
		switch {
		case (m.Claim.Name == "" || m.Claim != ref.NamespacedName) && (volumeName == "" || m.Volume != volumeName):
		case m.By != "":
			failed.Users = append(failed.Users, m)
		default:
			users[m.Pod] = true
		}
	}
	pods, err := objects.List[*v1.Pod](ctx, c.objects, kindPod, ref.Namespace)
	if err != nil {
		return err
	}
	for _, pod := range pods { // those that use a volume use its claim, which is looked at first
		if pod.Spec.NodeName != "" && !isUser(pod) && ref.Kind == kindClaim && slices.Contains(claimsOf(pod), ref.NamespacedName) {
			users[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = true
		}
	}
	if len(users)+len(failed.Users) == 0 {
		return nil
	}
	for pod := range users {
		failed.Pods = append(failed.Pods, pod)
	}
	slices.SortFunc(failed.Pods, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return failed
}
