package intree

import (
	"cmp"
	"context"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/recyclerpod"
)

// VolumeConfig is how a plugin's volumes are recycled: the tree's fields that a
// plugin reads.
type VolumeConfig struct {
	// RecyclerPodTemplate is the pod that empties a volume, its first one. A
	// plugin that changes it copies it first.
	RecyclerPodTemplate *v1.Pod
	// RecyclerMinimumTimeout, in seconds, is what a recycler pod has at least,
	// RecyclerTimeoutIncrement what it has for each Gi of the volume.
	RecyclerMinimumTimeout, RecyclerTimeoutIncrement int
}

// CalculateTimeoutForVolume returns in seconds how long a recycler pod may take:
// timeoutIncrement for each whole Gi of the volume's capacity, and minimumTimeout
// at least.
func CalculateTimeoutForVolume(minimumTimeout, timeoutIncrement int, pv *v1.PersistentVolume) int64 {
	capacity, gi := pv.Spec.Capacity[v1.ResourceStorage], resource.MustParse("1Gi")
	return max(int64(minimumTimeout), capacity.Value()/gi.Value()*int64(timeoutIncrement))
}

// RecycleVolumeByWatchingPodUntilCompletion has a pod empty the volume of a spec
// that is a PersistentVolume, by the host's [volume.PodRunner]. The tree's makes
// the pod by a client, which podvol's hosts do not have, and takes any volume for
// released: this one asks the host's [volume.ReleaseVerifier] before and while
// the pod runs. The pod is copied; its name is made of the volume's and its
// release, so that a repeated call finds it. Errors are the two roles', a
// *[volume.MissingRoleError], or a *[volume.InvalidSpecError] for a spec or a pod
// that cannot be used.
func RecycleVolumeByWatchingPodUntilCompletion(ctx context.Context, pvName string, pod *v1.Pod, spec *volume.Spec, host volume.VolumeHost, record volume.RecycleEventRecorder) error {
	release := ""
	if spec != nil {
		release = recyclerpod.ReleaseID(spec.PersistentVolume)
	}
	switch {
	case release == "":
		return volume.Invalid("PersistentVolume "+pvName, "must have a UID and the UID of the claim that has left it")
	case pod == nil || len(pod.Spec.Volumes) == 0:
		return volume.Invalid("VolumeConfig.RecyclerPodTemplate", "must be a pod with a volume")
	}
	pods, err := volume.Role[volume.PodRunner](host)
	if err != nil {
		return err
	}
	releases, err := volume.Role[volume.ReleaseVerifier](host)
	if err != nil {
		return err
	}
	verify := func(ctx context.Context) error { return releases.VerifyReleased(ctx, spec.PersistentVolume) }
	if err := verify(ctx); err != nil {
		return err
	}
	return pods.RunPod(ctx, recycler(pvName, release, pod), verify, record)
}

// recycler is a copy of the pod that is this release's alone.
func recycler(pvName, release string, pod *v1.Pod) *v1.Pod {
	const longest = 253 // the API's limit of a pod's name
	pod = pod.DeepCopy()
	pod.Namespace = cmp.Or(pod.Namespace, metav1.NamespaceDefault)
	name := "recycler-for-" + pvName
	pod.Name = strings.TrimRight(name[:min(len(name), longest-len(release)-1)], ".-") + "-" + release
	pod.GenerateName = ""
	metav1.SetMetaDataLabel(&pod.ObjectMeta, recyclerpod.Label, release)
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, recyclerpod.Annotation, pvName)
	return pod
}
