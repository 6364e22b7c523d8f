package manifest

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/podvol/podvol/util/nearest"
	"github.com/podvol/podvol/volume/objects"
)

// workloadKinds are the kinds that are read for the pods in them; all are
// namespaced.
var workloadKinds = []objects.Kind{
	workloadKind(v1.SchemeGroupVersion, "ReplicationController", func() metav1.Object { return new(v1.ReplicationController) }),
	workloadKind(appsv1.SchemeGroupVersion, "Deployment", func() metav1.Object { return new(appsv1.Deployment) }),
	workloadKind(appsv1.SchemeGroupVersion, "ReplicaSet", func() metav1.Object { return new(appsv1.ReplicaSet) }),
	workloadKind(appsv1.SchemeGroupVersion, "StatefulSet", func() metav1.Object { return new(appsv1.StatefulSet) }),
	workloadKind(appsv1.SchemeGroupVersion, "DaemonSet", func() metav1.Object { return new(appsv1.DaemonSet) }),
	workloadKind(batchv1.SchemeGroupVersion, "Job", func() metav1.Object { return new(batchv1.Job) }),
	workloadKind(batchv1.SchemeGroupVersion, "CronJob", func() metav1.Object { return new(batchv1.CronJob) }),
}

func workloadKind(version schema.GroupVersion, kind string, empty func() metav1.Object) objects.Kind {
	return objects.Kind{GroupVersionKind: version.WithKind(kind), Namespaced: true, New: empty}
}

// supported returns the kinds that are read: the kinds that the store keeps, and
// the kinds that make pods.
var supported = sync.OnceValue(func() []objects.Kind { return append(objects.Kinds(), workloadKinds...) })

// otherKinds are the kinds of the groups without a dot that have nothing to do
// with volumes. In these groups any other kind is a misspelling.
var otherKinds = map[string][]string{
	"": {"Service", "Namespace", "Event", "LimitRange", "ResourceQuota", "PodTemplate", "Binding",
		"ComponentStatus"},
	"apps":        {"ControllerRevision"},
	"batch":       {},
	"autoscaling": {"HorizontalPodAutoscaler", "Scale"},
	"policy":      {"PodDisruptionBudget", "Eviction", "PodSecurityPolicy"},
	"extensions":  {"Ingress", "NetworkPolicy", "PodSecurityPolicy"},
}

// newObject returns an empty object of the kind. nil without an error means that
// the kind is known and not needed.
func newObject(apiVersion, kind string) (object metav1.Object, namespaced bool, err error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, false, fmt.Errorf("apiVersion %q is not of the form group/version", apiVersion)
	}
	for _, s := range supported() {
		switch {
		case s.Kind != kind:
		case s.GroupVersion() == gv, wasBeta(s, gv):
			return s.New(), s.Namespaced, nil
		case s.Group == gv.Group || !strings.Contains(gv.Group, "."):
			return nil, false, fmt.Errorf("%s of apiVersion %q is not read; write it as %q", kind, apiVersion, s.GroupVersion())
		}
	}
	others, known := otherKinds[gv.Group]
	if strings.Contains(gv.Group, ".") || slices.Contains(others, kind) {
		return nil, false, nil
	}
	if !known {
		return nil, false, fmt.Errorf("there is no API group %q", gv.Group)
	}
	names, next := supportedKinds(), "; kinds"
	if near := nearest.Word(kind, names); near != "" {
		next = fmt.Sprintf("; did you mean %q? Kinds", near)
	}
	return nil, false, fmt.Errorf("there is no kind %q in apiVersion %q%s that are read: %s", kind, apiVersion, next, strings.Join(names, ", "))
}

// wasBeta reports whether a kind has the same fields in an older version.
func wasBeta(kind objects.Kind, gv schema.GroupVersion) bool {
	return kind.Kind == "ClusterTrustBundle" && gv == certificatesv1beta1.SchemeGroupVersion
}

func supportedKinds() (names []string) {
	for _, s := range supported() {
		names = append(names, s.Kind)
	}
	slices.Sort(names)
	return names
}
