package embedded

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/objects"
	"github.com/podvol/podvol/volume/persistentvolume/release"
)

// usesByMounts returns the uses of a PersistentVolume by mounts. It is asked
// after the stored pods, since a pod may be deleted while its volumes are still
// mounted, and before the volume is read for the last time: a pod that comes in
// between gets a Released volume only if that was changed, which is seen then.
func (c *Cluster) usesByMounts(ctx context.Context, pv *v1.PersistentVolume) (uses []release.Use, err error) {
	all, err := c.allMounted(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the mounts: %w", err)
	}
	for _, m := range all {
		if m.Volume == pv.Name {
			uses = append(uses, release.Use{By: m.podRef(), How: m.how()})
		}
	}
	return uses, nil
}

// podRef names the pod, by its UID where nothing else is known of it.
func (m Mounted) podRef() volume.ObjectRef {
	if m.Pod.Name == "" {
		return volume.NewObjectRef(kindPod, "", "of unknown name")
	}
	return volume.NewObjectRef(kindPod, m.Pod.Namespace, m.Pod.Name)
}

func (m Mounted) how() string {
	if m.By != "" {
		return fmt.Sprintf("UID %s, %s uses it", m.PodUID, m.By)
	}
	return fmt.Sprintf("UID %s, it is mounted", m.PodUID)
}

// addMounted stores the pods that have mounts: they use their claims, declared or
// not.
func (c *Cluster) addMounted(ctx context.Context, mounted func(context.Context) ([]Mounted, error)) error {
	if mounted == nil {
		return nil
	}
	all, err := mounted(ctx)
	if err != nil && !errors.Is(err, ErrIncomplete) {
		return fmt.Errorf("list the mounts: %w", err)
	}
	return c.storeUsers(ctx, all)
}

// storeUsers stores pods that use the claims for which something is mounted.
func (c *Cluster) storeUsers(ctx context.Context, all []Mounted) error {
	pods := make(map[types.UID]*v1.Pod)
	for _, m := range all {
		if m.Claim.Name == "" || m.Pod.Name == "" || m.Pod.Namespace != m.Claim.Namespace {
			continue
		}
		pod := pods[m.PodUID]
		if pod == nil {
			pod = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.Pod.Namespace, Name: m.Pod.Name, UID: m.PodUID}}
			pod.Spec.NodeName = c.nodeName
			pods[m.PodUID] = pod
		}
		pod.Spec.Volumes = append(pod.Spec.Volumes, m.asVolume(len(pod.Spec.Volumes)))
	}
	for _, pod := range pods {
		// Of two of one name, the other is known by its mounts alone.
		if _, err := c.objects.Create(ctx, pod); err != nil && !errors.Is(err, objects.ErrExists) {
			return err
		}
	}
	return nil
}

// asVolume is a mount as the volume of the pod that uses it.
func (m Mounted) asVolume(number int) v1.Volume {
	source := v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: m.Claim.Name}}
	return v1.Volume{Name: fmt.Sprintf("mounted-%d", number), VolumeSource: source}
}

// PodGone deletes the pod of that UID, after all its volumes were torn down: from
// now on it uses no claim. That there is none is no error.
func (c *Cluster) PodGone(ctx context.Context, uid types.UID) error {
	pods, err := objects.List[*v1.Pod](ctx, c.objects, kindPod, metav1.NamespaceAll)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(pods, func(pod *v1.Pod) bool { return pod.UID == uid })
	if i < 0 {
		return nil
	}
	err = c.objects.Delete(ctx, refOf(pods[i]), objects.Preconditions{UID: uid})
	if errors.Is(err, volume.ErrNotFound) || errors.Is(err, objects.ErrConflict) {
		return nil
	}
	return err
}
