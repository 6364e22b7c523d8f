package embedded

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
)

// Checks say, without a cluster, whether [Cluster.Delete], [Cluster.Forget] (by
// the same rules) and [Cluster.Release] would do something: for a rehearsal that
// locks nothing, over the result of [persisted.Read]. They change nothing, and
// are safe for concurrent use as far as their fields are.
type Checks struct {
	// Objects are all claims and volumes, and the pods that are known.
	Objects objects.Reader
	// Mounted returns the mounts, as in [Config], and the result of [ReadUsers]; it
	// must not be nil.
	Mounted func(context.Context) ([]Mounted, error)
}

// Delete returns the error with which [Cluster.Delete], or Forget, would refuse, or
// nil.
func (c Checks) Delete(ctx context.Context, ref volume.ObjectRef) error {
	object, err := c.Objects.Get(ctx, ref)
	if err != nil {
		return err
	}
	return c.delete(ctx, ref, object)
}

// Release returns the error with which [Cluster.Release] would refuse, or nil.
func (c Checks) Release(ctx context.Context, name string) error {
	_, err := c.releasable(ctx, name)
	return err
}

func (c Checks) delete(ctx context.Context, ref volume.ObjectRef, object metav1.Object) error {
	switch o := object.(type) {
	case *v1.PersistentVolumeClaim:
		return c.unused(ctx, ref, o.Spec.VolumeName)
	case *v1.PersistentVolume:
		return c.left(ctx, ref, o, "deleted")
	}
	return refused(ref, "deleted", "only claims and PersistentVolumes are, so that what others need stays; Prune and PodGone let go of the rest")
}

// releasable returns the volume of that name if it may be released.
func (c Checks) releasable(ctx context.Context, name string) (*v1.PersistentVolume, error) {
	ref := volume.NewObjectRef(kindVolume, "", name)
	pv, err := objects.Get[*v1.PersistentVolume](ctx, c.Objects, ref)
	if err != nil {
		return nil, err
	}
	if err := c.left(ctx, ref, pv, "released"); err != nil {
		return nil, err
	}
	if reason := notReleasable(pv); reason != "" {
		return nil, refused(ref, "released", reason)
	}
	return pv, nil
}

func notReleasable(pv *v1.PersistentVolume) string {
	switch policy := pv.Spec.PersistentVolumeReclaimPolicy; {
	case pv.DeletionTimestamp != nil:
		return "it is being deleted"
	case pv.Spec.ClaimRef == nil:
		return "no claim has it"
	case pv.Status.Phase == v1.VolumeFailed:
		return fmt.Sprintf("its claim has left it, and what its reclaim policy %s asks for has failed, maybe in part (%s): look at the data, then delete the volume and declare it anew", policy, pv.Status.Message)
	case pv.Status.Phase != v1.VolumeReleased:
		return fmt.Sprintf("its phase is %s; only one that its claim has left, which is Released then, can be", pv.Status.Phase)
	case policy != v1.PersistentVolumeReclaimRetain && policy != "":
		return fmt.Sprintf("its reclaim policy is %s, so that its data may be gone in part", policy)
	}
	return ""
}

// left makes sure that neither a claim nor a pod has a volume.
func (c Checks) left(ctx context.Context, ref volume.ObjectRef, pv *v1.PersistentVolume, op string) error {
	if claim := pv.Spec.ClaimRef; claim != nil && claim.UID != "" {
		name := volume.NewObjectRef(kindClaim, claim.Namespace, claim.Name)
		stored, err := objects.Get[*v1.PersistentVolumeClaim](ctx, c.Objects, name)
		if err != nil && !errors.Is(err, volume.ErrNotFound) {
			return err
		}
		if err == nil && stored.UID == claim.UID && (stored.Spec.VolumeName == "" || stored.Spec.VolumeName == pv.Name) {
			return refused(ref, op, fmt.Sprintf("it belongs to %s; delete that first", name))
		}
	}
	return c.unused(ctx, ref, pv.Name)
}

// unused makes sure that no pod, declared or not, uses a claim or volume.
func (c Checks) unused(ctx context.Context, ref volume.ObjectRef, volumeName string) error {
	all, err := c.Mounted(ctx)
	if err != nil {
		return fmt.Errorf("cannot check whether %s is in use; treating it as used: %w", ref, err)
	}
	var beside []Mounted
	users := make(map[types.NamespacedName]bool)
	for _, m := range all {
		switch {
		case (m.Claim.Name == "" || m.Claim != ref.NamespacedName) && (volumeName == "" || m.Volume != volumeName):
		case m.By != "":
			beside = append(beside, m)
		default:
			users[m.Pod] = true
		}
	}
	pods, err := objects.List[*v1.Pod](ctx, c.Objects, kindPod, ref.Namespace)
	if err != nil {
		return err
	}
	for _, pod := range pods { // those that use a volume use its claim, which is looked at first
		if pod.Spec.NodeName != "" && !isUser(pod) && ref.Kind == kindClaim && slices.Contains(claimsOf(pod), ref.NamespacedName) {
			users[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = true
		}
	}
	if len(users)+len(beside) == 0 {
		return nil
	}
	byName := func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) }
	return inUse(ref, slices.SortedFunc(maps.Keys(users), byName), beside)
}
