package nfs

import (
	"context"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/recyclerpod"
)

const (
	// recyclerImage has a shell, find and ls, as images of this name have.
	recyclerImage = "busybox:stable"
	// recyclerScript fails if anything is left, and at once where there is a share
	// that has volumes provisioned in it, as [ErrHoldsVolumes] says. -xdev keeps it
	// out of mounts in the volume. Not every busybox's find knows -delete.
	recyclerScript = `test -d /scrub || exit 1
books=$(find /scrub -xdev -type d -iname .podvol) || exit 1
if test -n "$books"; then
  echo "this has a directory .podvol: volumes are provisioned beside it, and nothing is emptied: $books" >&2
  exit 1
fi
find /scrub -xdev -mindepth 1 ! -type d -exec rm -f {} + &&
find /scrub -xdev -depth -mindepth 1 -type d -exec rmdir {} + &&
test -z "$(ls -A /scrub)"`
	// recyclerName is what the names of these pods begin with, as in Kubernetes.
	recyclerName = "recycler-for-"
	// maxPodName is the API's limit for a DNS subdomain.
	maxPodName = 253
)

// recyclerTemplate is the pod that empties volumes where no other is given.
func recyclerTemplate() *v1.Pod {
	no := false
	return &v1.Pod{Spec: v1.PodSpec{
		RestartPolicy:                v1.RestartPolicyNever,
		AutomountServiceAccountToken: &no,
		Volumes:                      []v1.Volume{{Name: "vol"}},
		Containers: []v1.Container{{
			Name: "recycler", Image: recyclerImage,
			Command: []string{"/bin/sh", "-c", recyclerScript},
			// What the script says is what the release fails with.
			TerminationMessagePolicy: v1.TerminationMessageFallbackToLogsOnError,
			VolumeMounts:             []v1.VolumeMount{{Name: "vol", MountPath: "/scrub"}},
		}},
	}}
}

// recyclerPod is the pod that empties pv for this release. Its name is the same
// whenever it is asked for, so that a restarted process finds it, and another
// one for every other release: that an earlier one succeeded means nothing.
func recyclerPod(template *v1.Pod, pv *v1.PersistentVolume, timeout time.Duration) *v1.Pod {
	if template == nil {
		template = recyclerTemplate()
	}
	release := recyclerpod.ReleaseID(pv)
	pod := &v1.Pod{Spec: *template.Spec.DeepCopy()}
	pod.Namespace = template.Namespace
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	pod.Name = nameWithin(recyclerName+pv.Name, maxPodName-len(release)-1) + "-" + release
	pod.Labels = withKey(template.Labels, recyclerpod.Label, release)
	pod.Annotations = withKey(template.Annotations, recyclerpod.Annotation, pv.Name)
	seconds := int64(timeout / time.Second)
	pod.Spec.ActiveDeadlineSeconds = &seconds
	pod.Spec.Volumes[0].VolumeSource = v1.VolumeSource{NFS: pv.Spec.NFS.DeepCopy()}
	return pod
}

func nameWithin(name string, most int) string {
	return strings.TrimRight(name[:min(len(name), most)], ".-")
}

func withKey(given map[string]string, key, value string) map[string]string {
	all := map[string]string{key: value}
	for k, v := range given {
		if k != key {
			all[k] = v
		}
	}
	return all
}

// recycleByPod has a pod empty the volume. The pod's own deadline ends it.
func (r *recycling) recycleByPod(ctx context.Context, pods volume.PodRunner) error {
	pod := recyclerPod(r.plugin.config.Recycle.Pod, r.pv, r.timeout)
	if err := r.verify(ctx); err != nil {
		return err
	}
	r.record(v1.EventTypeNormal, "pod "+pod.Namespace+"/"+pod.Name+" empties "+r.export.String()+", in no more than "+r.timeout.String())
	return pods.RunPod(ctx, pod, r.verify, r.record)
}
