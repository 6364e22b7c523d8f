package volume

import "k8s.io/apimachinery/pkg/types"

// ObjectRef names an API object by its kind ("Secret", "ConfigMap", "Pod"), its
// namespace and its name. The namespace of cluster-wide kinds is empty.
type ObjectRef struct {
	Kind string
	types.NamespacedName
}

// NewObjectRef returns the reference to an object.
func NewObjectRef(kind, namespace, name string) ObjectRef {
	return ObjectRef{Kind: kind, NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// String is "Kind namespace/name", or "Kind name" for cluster-wide kinds.
func (r ObjectRef) String() string {
	if r.Namespace == "" {
		return r.Kind + " " + r.Name
	}
	return r.Kind + " " + r.NamespacedName.String()
}
