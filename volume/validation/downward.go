package validation

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// fieldRef checks the reference of a volume's file to a field of the pod.
func (c *checker) fieldRef(at string, ref *v1.ObjectFieldSelector) {
	oneOf(&c.faults, at+".apiVersion", ref.APIVersion, "", "v1")
	at += ".fieldPath"
	base, key, subscript := strings.Cut(ref.FieldPath, "['")
	key, closed := strings.CutSuffix(key, "']")
	if !subscript || !closed {
		c.plainField(at, ref.FieldPath)
		return
	}
	if base == "metadata.annotations" {
		key = strings.ToLower(key) // the API folds the case of annotations only
	} else {
		oneOf(&c.faults, at, base, "metadata.labels", "metadata.annotations")
	}
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		c.refuse(at, "%q is no key of labels or annotations: %s", key, strings.Join(wrong, "; "))
	}
}

func (c *checker) plainField(at, path string) {
	switch path {
	case "metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations":
	default:
		c.refuse(at, "%q is not one of metadata.name, .namespace, .uid, .labels and .annotations, and of the last two ['key']; others, as the pod's address, are given to environment variables only", path)
	}
}

// resourceFieldRef checks the reference of a volume's file to a resource of a
// container. It does not check that the pod has the container; the writer of the
// file does.
func (c *checker) resourceFieldRef(at string, ref *v1.ResourceFieldSelector) {
	c.required(at+".containerName", ref.ContainerName)
	if !strings.HasPrefix(ref.Resource, "limits."+v1.ResourceHugePagesPrefix) && !strings.HasPrefix(ref.Resource, "requests."+v1.ResourceHugePagesPrefix) {
		oneOf(&c.faults, at+".resource", ref.Resource, "limits.cpu", "limits.memory", "limits.ephemeral-storage",
			"requests.cpu", "requests.memory", "requests.ephemeral-storage")
	}
	if ref.Divisor.IsZero() {
		return
	}
	units := []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
	if strings.HasSuffix(ref.Resource, ".cpu") {
		units = []string{"1", "1m"}
	}
	divisor := ref.Divisor.DeepCopy() // reading a quantity may write to it
	if !slices.Contains(units, divisor.String()) {
		c.refuse(at+".divisor", "%s is not one of %s; use one of them", divisor.String(), strings.Join(units, ", "))
	}
}
