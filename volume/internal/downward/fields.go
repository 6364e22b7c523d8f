package downward

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume"
)

// Field is a parsed fieldRef: a field of the pod and, of a map, the key.
type Field struct{ path, key string }

// The fields that volumes may show.
const (
	fieldName        = "metadata.name"
	fieldNamespace   = "metadata.namespace"
	fieldUID         = "metadata.uid"
	fieldLabels      = "metadata.labels"
	fieldAnnotations = "metadata.annotations"
)

// The fields that only environment variables may show: some of them are not
// known before the pod's containers start.
const (
	fieldNode    = "spec.nodeName"
	fieldAccount = "spec.serviceAccountName"
	fieldHostIP  = "status.hostIP"
	fieldHostIPs = "status.hostIPs"
	fieldPodIP   = "status.podIP"
	fieldPodIPs  = "status.podIPs"
)

func onlyForVariables(path string) bool {
	switch path {
	case fieldNode, fieldAccount, fieldHostIP, fieldHostIPs, fieldPodIP, fieldPodIPs:
		return true
	}
	return false
}

// VolumeField checks the fieldRef of a volume's file; at is where it is, as
// errors name it. The error is a *[volume.InvalidSpecError].
func VolumeField(at string, ref *v1.ObjectFieldSelector) (Field, error) {
	f, err := parse(at, ref)
	if err == nil && onlyForVariables(f.path) {
		return Field{}, volume.Invalid(at+".fieldPath", "%s is given to environment variables only, not to volumes", f.path)
	}
	return f, err
}

// VariableField checks the fieldRef of an environment variable, which may not
// show all labels or annotations at once. The error is a
// *[volume.InvalidSpecError].
func VariableField(at string, ref *v1.ObjectFieldSelector) (Field, error) {
	f, err := parse(at, ref)
	if err == nil && f.key == "" && (f.path == fieldLabels || f.path == fieldAnnotations) {
		return Field{}, volume.Invalid(at+".fieldPath", "%s is given to volumes only; a variable takes one of them, as %[1]s['key']", f.path)
	}
	return f, err
}

func parse(at string, ref *v1.ObjectFieldSelector) (Field, error) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return Field{}, volume.Invalid(at+".apiVersion", `must be "v1" or left out, is %q`, ref.APIVersion)
	}
	at += ".fieldPath"
	if path, key, ok := subscript(ref.FieldPath); ok {
		checked := key
		if path == fieldAnnotations {
			checked = strings.ToLower(key) // as the API, which keeps the case of labels
		}
		if faults := validation.IsQualifiedName(checked); len(faults) > 0 {
			return Field{}, volume.Invalid(at, "%q is not a key of labels or annotations: %s", key, strings.Join(faults, "; "))
		}
		return Field{path, key}, nil
	}
	switch ref.FieldPath {
	case fieldName, fieldNamespace, fieldUID, fieldLabels, fieldAnnotations:
		return Field{path: ref.FieldPath}, nil
	}
	if onlyForVariables(ref.FieldPath) {
		return Field{path: ref.FieldPath}, nil
	}
	return Field{}, volume.Invalid(at, "%q is not one of %s, %s, %s, %s, %s, and %s['key'] or %s['key']; nor, for a variable, of %s", ref.FieldPath,
		fieldName, fieldNamespace, fieldUID, fieldLabels, fieldAnnotations, fieldLabels, fieldAnnotations,
		strings.Join([]string{fieldNode, fieldAccount, fieldHostIP, fieldHostIPs, fieldPodIP, fieldPodIPs}, ", "))
}

// subscript splits metadata.labels['key'] and metadata.annotations['key'].
func subscript(path string) (base, key string, ok bool) {
	base, key, ok = strings.Cut(path, "['")
	if !ok || (base != fieldLabels && base != fieldAnnotations) {
		return "", "", false
	}
	key, ok = strings.CutSuffix(key, "']")
	return base, key, ok
}

// Of returns the field's value. A key that a map lacks is empty, and so are
// addresses that the pod's status does not have; several are joined by commas.
func (f Field) Of(pod *v1.Pod) string {
	switch f.path {
	case fieldName:
		return pod.Name
	case fieldNamespace:
		return pod.Namespace
	case fieldUID:
		return string(pod.UID)
	case fieldNode:
		return pod.Spec.NodeName
	case fieldAccount:
		return pod.Spec.ServiceAccountName
	case fieldLabels:
		return f.ofMap(pod.Labels)
	case fieldAnnotations:
		return f.ofMap(pod.Annotations)
	}
	return f.ofStatus(&pod.Status)
}

func (f Field) ofMap(all map[string]string) string {
	if f.key != "" {
		return all[f.key]
	}
	return formatMap(all)
}

func (f Field) ofStatus(status *v1.PodStatus) string {
	var addresses []string
	switch f.path {
	case fieldHostIP:
		return status.HostIP
	case fieldPodIP:
		return status.PodIP
	case fieldHostIPs:
		for _, a := range status.HostIPs {
			addresses = append(addresses, a.IP)
		}
	case fieldPodIPs:
		for _, a := range status.PodIPs {
			addresses = append(addresses, a.IP)
		}
	}
	return strings.Join(addresses, ",")
}

// formatMap writes one line key="value" for each entry, the value quoted as in Go, in the
// order of the keys, as the kubelet does (FormatMap in pkg/fieldpath of Kubernetes v1.37).
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, m[key]))
	}
	return strings.Join(lines, "\n")
}
