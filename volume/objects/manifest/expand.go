package manifest

import (
	"fmt"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/volume"
)

// maxReplicas is the number of pods above which a workload is refused: far
// more than a node can run, and few enough to hold.
const maxReplicas = 10_000

// workload is an object that makes pods.
type workload struct {
	placed
	template *v1.PodTemplateSpec
	// field is the template's path, with a dot at its end.
	field    string
	replicas *int32
	// countField is the field of replicas.
	countField string
	// first is the ordinal of the first pod.
	first int
	// finish adds to the pod what the kind of workload adds.
	finish func(pod *v1.Pod, ordinal int)
	// claims are the templates of each pod's own claims. The claims get labels
	// and retention.
	claims      []v1.PersistentVolumeClaim
	claimLabels map[string]string
	retention   Retention
	// fault is an error of the workload outside its template.
	fault error
}

// asWorkload describes the object as a workload, if it is one.
func asWorkload(p placed) (workload, bool) {
	w := workload{placed: p, field: "spec.template.", countField: "spec.replicas"}
	switch o := p.object.(type) {
	case *appsv1.Deployment:
		w.template, w.replicas = &o.Spec.Template, o.Spec.Replicas
	case *appsv1.ReplicaSet:
		w.template, w.replicas = &o.Spec.Template, o.Spec.Replicas
	case *v1.ReplicationController:
		w.template, w.replicas = o.Spec.Template, o.Spec.Replicas
	case *appsv1.StatefulSet:
		w.statefulSet(o)
	case *appsv1.DaemonSet:
		w.template = &o.Spec.Template
	case *batchv1.Job:
		w.job(&o.Spec)
	case *batchv1.CronJob:
		w.template, w.field = &o.Spec.JobTemplate.Spec.Template, "spec.jobTemplate.spec.template."
	default:
		return workload{}, false
	}
	return w, true
}

func (w *workload) statefulSet(o *appsv1.StatefulSet) {
	w.template, w.replicas, w.claims = &o.Spec.Template, o.Spec.Replicas, o.Spec.VolumeClaimTemplates
	if o.Spec.Selector != nil {
		w.claimLabels = o.Spec.Selector.MatchLabels
	}
	w.retention, w.fault = retention(o)
	if o.Spec.Ordinals != nil {
		w.first = int(o.Spec.Ordinals.Start)
	}
	w.finish = func(pod *v1.Pod, ordinal int) {
		metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.StatefulSetPodNameLabel, pod.Name)
		metav1.SetMetaDataLabel(&pod.ObjectMeta, appsv1.PodIndexLabel, strconv.Itoa(ordinal))
	}
}

// job takes the number of pods that run at a time: parallelism, but never more
// than completions.
func (w *workload) job(spec *batchv1.JobSpec) {
	w.template, w.replicas, w.countField = &spec.Template, spec.Parallelism, "spec.parallelism"
	if c := spec.Completions; c != nil && (*c < 0 || (w.replicas != nil && *c < *w.replicas)) {
		w.replicas, w.countField = c, "spec.completions"
	}
	if spec.Suspend != nil && *spec.Suspend {
		w.replicas = new(int32)
	}
	if spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion {
		w.finish = func(pod *v1.Pod, ordinal int) {
			metav1.SetMetaDataLabel(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, strconv.Itoa(ordinal))
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, batchv1.JobCompletionIndexAnnotation, strconv.Itoa(ordinal))
		}
	}
}

// count returns the number of pods of the workload. The error says why it cannot
// have that number.
func (w *workload) count() (int, error) {
	switch {
	case w.fault != nil:
		return 0, w.fault
	case w.template == nil:
		return 0, volume.Invalid("spec.template", "is missing")
	case w.first < 0:
		return 0, volume.Invalid("spec.ordinals.start", "%d must not be negative", w.first)
	case w.replicas == nil:
		return 1, nil
	case *w.replicas < 0:
		return 0, volume.Invalid(w.countField, "%d must not be negative", *w.replicas)
	case *w.replicas > maxReplicas:
		return 0, volume.Invalid(w.countField, "%d pods are more than the %d that one object may ask for here", *w.replicas, maxReplicas)
	}
	return int(*w.replicas), nil
}

// pod returns the workload's i-th pod, without a UID.
func (w *workload) pod(i int) podAt {
	ordinal := w.first + i
	pod := &v1.Pod{ObjectMeta: *w.template.ObjectMeta.DeepCopy(), Spec: *w.template.Spec.DeepCopy()}
	pod.Name = fmt.Sprintf("%s-%d", w.object.GetName(), ordinal)
	pod.Namespace, pod.UID, pod.GenerateName = w.object.GetNamespace(), "", ""
	if w.finish != nil {
		w.finish(pod, ordinal)
	}
	for _, template := range w.claims {
		useClaim(pod, template.Name, w.claimName(template.Name, ordinal))
	}
	return podAt{
		placed:  placed{place: w.place, kind: "Pod", object: pod},
		pod:     pod,
		owner:   w.ref(),
		ordinal: ordinal,
		prefix:  w.field,
	}
}

func (w *workload) claimName(template string, ordinal int) string {
	return fmt.Sprintf("%s-%s-%d", template, w.object.GetName(), ordinal)
}

// useClaim makes the pod's volume of that name the claim, in place of any
// other source.
func useClaim(pod *v1.Pod, name, claim string) {
	v := v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
		PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			pod.Spec.Volumes[i] = v
			return
		}
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, v)
}

// claimsOf returns the claims of the workload's i-th pod.
func (w *workload) claimsOf(i int) (claims []placed) {
	for n := range w.claims {
		claim := w.claims[n].DeepCopy()
		claim.Name = w.claimName(claim.Name, w.first+i)
		claim.Namespace, claim.UID, claim.ResourceVersion = w.object.GetNamespace(), "", ""
		if len(w.claimLabels) > 0 {
			labels := maps.Clone(w.claimLabels)
			maps.Copy(labels, claim.Labels)
			claim.Labels = labels
		}
		w.retention.mark(claim)
		claims = append(claims, placed{place: w.place, kind: "PersistentVolumeClaim", object: claim})
	}
	return claims
}

// podAt is a pod and its origin.
type podAt struct {
	placed
	pod *v1.Pod
	// owner is the object that the pod's UID is made of: the workload, or the
	// pod itself.
	owner   volume.ObjectRef
	ordinal int
	// prefix is the path of the pod in its document.
	prefix string
}
