package projection

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume"
)

// field is a parsed fieldRef: a field of the pod and, of a map, the key.
type field struct{ path, key string }

// The fields that volumes may show.
const (
	fieldName        = "metadata.name"
	fieldNamespace   = "metadata.namespace"
	fieldUID         = "metadata.uid"
	fieldLabels      = "metadata.labels"
	fieldAnnotations = "metadata.annotations"
)

// parseField checks a fieldRef. The error is a *[volume.InvalidSpecError].
func parseField(at string, ref *v1.ObjectFieldSelector) (field, error) {
	if ref.APIVersion != "" && ref.APIVersion != "v1" {
		return field{}, volume.Invalid(at+".apiVersion", `must be "v1" or left out, is %q`, ref.APIVersion)
	}
	at += ".fieldPath"
	if path, key, ok := subscript(ref.FieldPath); ok {
		// The API folds an annotation's case before it checks the key.
		if faults := validation.IsQualifiedName(strings.ToLower(key)); len(faults) > 0 {
			return field{}, volume.Invalid(at, "%q is not a key of labels or annotations: %s", key, strings.Join(faults, "; "))
		}
		return field{path, key}, nil
	}
	switch ref.FieldPath {
	case fieldName, fieldNamespace, fieldUID, fieldLabels, fieldAnnotations:
		return field{path: ref.FieldPath}, nil
	case "spec.nodeName", "spec.serviceAccountName", "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs":
		return field{}, volume.Invalid(at, "%s is given to environment variables only, not to volumes", ref.FieldPath)
	}
	return field{}, volume.Invalid(at, "%q is not one of %s, %s, %s, %s, %s, and %s['key'] or %s['key']", ref.FieldPath,
		fieldName, fieldNamespace, fieldUID, fieldLabels, fieldAnnotations, fieldLabels, fieldAnnotations)
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

// of returns the field's value. A key that a map lacks is empty. Unlike the
// kubelet's, the value of a single annotation keeps the order of its lines.
func (f field) of(pod *v1.Pod) string {
	switch f.path {
	case fieldName:
		return pod.Name
	case fieldNamespace:
		return pod.Namespace
	case fieldUID:
		return string(pod.UID)
	}
	all := pod.Labels
	if f.path == fieldAnnotations {
		all = pod.Annotations
	}
	if f.key != "" {
		return all[f.key]
	}
	return formatMap(all)
}

// formatMap writes one line key="value" for each entry, the value quoted as in
// Go, in the order of the lines.
func formatMap(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for key, value := range m {
		lines = append(lines, fmt.Sprintf("%s=%q", key, value))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
