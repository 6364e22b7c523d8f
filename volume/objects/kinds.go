package objects

import (
	"fmt"
	"reflect"
	"slices"

	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/podvol/podvol/volume"
)

// UnknownKindError says that a store does not keep objects of a kind.
type UnknownKindError struct {
	// Kind is the kind asked for, or the Go type passed.
	Kind string
}

func (e *UnknownKindError) Error() string {
	return fmt.Sprintf("objects of kind %s are not kept here", e.Kind)
}

// stored is what every kept object is.
type stored interface {
	metav1.Object
	runtime.Object
}

// Kind is one kind of object that [Store] keeps.
type Kind struct {
	schema.GroupVersionKind
	Namespaced bool
	// New makes an empty object, without name and kind.
	New func() metav1.Object
}

// kind is what else the store must know about a kind.
type kind struct {
	Kind
	goType reflect.Type
	// moveStatus makes to's status from's; nil where the kind has no status.
	// The two share memory afterwards.
	moveStatus func(to, from metav1.Object)
}

// kinds is the table of everything that is kept.
var kinds = []kind{
	kindOf(v1.SchemeGroupVersion, true, func(to, from *v1.Pod) { to.Status = from.Status }),
	kindOf(v1.SchemeGroupVersion, false, func(to, from *v1.PersistentVolume) { to.Status = from.Status }),
	kindOf(v1.SchemeGroupVersion, true, func(to, from *v1.PersistentVolumeClaim) { to.Status = from.Status }),
	kindOf(v1.SchemeGroupVersion, false, func(to, from *v1.Node) { to.Status = from.Status }),
	kindOf[v1.ConfigMap](v1.SchemeGroupVersion, true, nil),
	kindOf[v1.Secret](v1.SchemeGroupVersion, true, nil),
	kindOf[v1.ServiceAccount](v1.SchemeGroupVersion, true, nil),
	kindOf[storagev1.StorageClass](storagev1.SchemeGroupVersion, false, nil),
	kindOf[certificatesv1beta1.ClusterTrustBundle](certificatesv1beta1.SchemeGroupVersion, false, nil),
}

// kindOf is the kind of a Go type, whose name is the kind's.
func kindOf[T any, P interface {
	*T
	stored
}](version schema.GroupVersion, namespaced bool, moveStatus func(to, from P)) kind {
	k := kind{goType: reflect.TypeFor[P](), Kind: Kind{
		GroupVersionKind: version.WithKind(reflect.TypeFor[T]().Name()),
		Namespaced:       namespaced,
		New:              func() metav1.Object { return P(new(T)) },
	}}
	if moveStatus != nil {
		k.moveStatus = func(to, from metav1.Object) { moveStatus(to.(P), from.(P)) }
	}
	return k
}

// Kinds returns the kinds that a [Store] keeps. The slice is the caller's.
func Kinds() []Kind {
	all := make([]Kind, 0, len(kinds))
	for _, k := range kinds {
		all = append(all, k.Kind)
	}
	return all
}

func kindNamed(name string) (kind, bool) {
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.Kind.Kind == name })
	if i < 0 {
		return kind{}, false
	}
	return kinds[i], true
}

// describe returns an object's kind and reference, and refuses what the store
// could not keep.
func describe(object metav1.Object) (kind, volume.ObjectRef, error) {
	goType := reflect.TypeOf(object)
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.goType == goType })
	if i < 0 {
		return kind{}, volume.ObjectRef{}, &UnknownKindError{Kind: fmt.Sprintf("%T", object)}
	}
	k := kinds[i]
	ref := volume.NewObjectRef(k.Kind.Kind, object.GetNamespace(), object.GetName())
	switch {
	case ref.Name == "":
		return k, ref, volume.Invalid("metadata.name", "a %s must have a name", ref.Kind)
	case k.Namespaced && ref.Namespace == "":
		return k, ref, volume.Invalid("metadata.namespace", "%s must have a namespace", ref)
	case !k.Namespaced && ref.Namespace != "":
		return k, ref, volume.Invalid("metadata.namespace", "a %s belongs to no namespace", ref.Kind)
	}
	return k, ref, nil
}

func clone(k kind, object metav1.Object) stored {
	c := object.(stored).DeepCopyObject().(stored)
	c.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	return c
}
