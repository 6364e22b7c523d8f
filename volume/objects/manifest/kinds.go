package manifest

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// supported lists the kinds that are read, with what makes an empty one.
var supported = []struct {
	gvk        schema.GroupVersionKind
	namespaced bool
	empty      func() metav1.Object
}{
	{v1.SchemeGroupVersion.WithKind("Pod"), true, func() metav1.Object { return new(v1.Pod) }},
	{v1.SchemeGroupVersion.WithKind("ReplicationController"), true, func() metav1.Object { return new(v1.ReplicationController) }},
	{v1.SchemeGroupVersion.WithKind("PersistentVolume"), false, func() metav1.Object { return new(v1.PersistentVolume) }},
	{v1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), true, func() metav1.Object { return new(v1.PersistentVolumeClaim) }},
	{v1.SchemeGroupVersion.WithKind("ConfigMap"), true, func() metav1.Object { return new(v1.ConfigMap) }},
	{v1.SchemeGroupVersion.WithKind("Secret"), true, func() metav1.Object { return new(v1.Secret) }},
	{v1.SchemeGroupVersion.WithKind("ServiceAccount"), true, func() metav1.Object { return new(v1.ServiceAccount) }},
	{v1.SchemeGroupVersion.WithKind("Node"), false, func() metav1.Object { return new(v1.Node) }},
	{appsv1.SchemeGroupVersion.WithKind("Deployment"), true, func() metav1.Object { return new(appsv1.Deployment) }},
	{appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), true, func() metav1.Object { return new(appsv1.ReplicaSet) }},
	{appsv1.SchemeGroupVersion.WithKind("StatefulSet"), true, func() metav1.Object { return new(appsv1.StatefulSet) }},
	{appsv1.SchemeGroupVersion.WithKind("DaemonSet"), true, func() metav1.Object { return new(appsv1.DaemonSet) }},
	{batchv1.SchemeGroupVersion.WithKind("Job"), true, func() metav1.Object { return new(batchv1.Job) }},
	{batchv1.SchemeGroupVersion.WithKind("CronJob"), true, func() metav1.Object { return new(batchv1.CronJob) }},
	{storagev1.SchemeGroupVersion.WithKind("StorageClass"), false, func() metav1.Object { return new(storagev1.StorageClass) }},
	{certificatesv1beta1.SchemeGroupVersion.WithKind("ClusterTrustBundle"), false, func() metav1.Object { return new(certificatesv1beta1.ClusterTrustBundle) }},
}

// otherKinds are the kinds of the groups without a dot that have nothing to do
// with volumes. In these groups any other kind is a misspelling.
var otherKinds = map[string][]string{
	"": {"Service", "Namespace", "Endpoints", "Event", "LimitRange", "ResourceQuota", "PodTemplate", "Binding",
		"ComponentStatus"},
	"apps":        {"ControllerRevision"},
	"batch":       {},
	"autoscaling": {"HorizontalPodAutoscaler", "Scale"},
	"policy":      {"PodDisruptionBudget", "Eviction", "PodSecurityPolicy"},
	"extensions":  {"Ingress", "NetworkPolicy", "PodSecurityPolicy"},
}

// newObject returns an empty object of the kind. Without error, nil says that
// the kind is known and not of interest.
func newObject(apiVersion, kind string) (object metav1.Object, namespaced bool, err error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, false, fmt.Errorf("apiVersion %q is not of the form group/version", apiVersion)
	}
	for _, s := range supported {
		switch {
		case s.gvk.Kind != kind:
		case s.gvk.GroupVersion() == gv:
			return s.empty(), s.namespaced, nil
		case s.gvk.Group == gv.Group || !strings.Contains(gv.Group, "."):
			return nil, false, fmt.Errorf("%s of apiVersion %q is not read; write it as %q", kind, apiVersion, s.gvk.GroupVersion())
		}
	}
	others, known := otherKinds[gv.Group]
	if strings.Contains(gv.Group, ".") || slices.Contains(others, kind) {
		return nil, false, nil
	}
	if !known {
		return nil, false, fmt.Errorf("there is no API group %q", gv.Group)
	}
	return nil, false, fmt.Errorf("there is no kind %q in apiVersion %q; kinds that are read: %s", kind, apiVersion, supportedKinds())
}

func supportedKinds() string {
	names := make([]string, 0, len(supported))
	for _, s := range supported {
		names = append(names, s.gvk.Kind)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
