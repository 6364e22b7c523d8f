package objects

import (
	"fmt"
	"reflect"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
)

// UnknownKindError says that a store does not keep objects of a kind.
type UnknownKindError struct {
	// Kind is the requested kind, or the Go type of the passed object.
	Kind string
}

func (e *UnknownKindError) Error() string {
	return fmt.Sprintf("objects of kind %s are not kept here", e.Kind)
}

// stored is the interface of every kept object.
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

// kind is a kind with everything that the store needs of it.
type kind struct {
	Kind
	goType reflect.Type
	// shallow returns a copy of an object, which may share the memory of its parts.
	shallow func(object metav1.Object) stored
	// status is nil if the kind has none.
	status *statusOf
}

// statusOf is everything that the store needs of the status of a kind.
type statusOf struct {
	// without returns a copy of an object without its status.
	without func(object metav1.Object) stored
	// share gives an object the status of another one, in the same memory; copy, a copy of it.
	share, copy func(to stored, from metav1.Object)
	// equal compares the status of two objects.
	equal func(a, b stored) bool
}

// kinds returns the table of the kept kinds, which is made at its first use.
var kinds = sync.OnceValue(func() []kind {
	return []kind{
		kindWithStatus(v1.SchemeGroupVersion, true, func(o *v1.Pod) *v1.PodStatus { return &o.Status }),
		kindWithStatus(v1.SchemeGroupVersion, false, func(o *v1.PersistentVolume) *v1.PersistentVolumeStatus { return &o.Status }),
		kindWithStatus(v1.SchemeGroupVersion, true, func(o *v1.PersistentVolumeClaim) *v1.PersistentVolumeClaimStatus { return &o.Status }),
		kindWithStatus(v1.SchemeGroupVersion, false, func(o *v1.Node) *v1.NodeStatus { return &o.Status }),
		kindOf[v1.ConfigMap](v1.SchemeGroupVersion, true),
		kindOf[v1.Secret](v1.SchemeGroupVersion, true),
		kindOf[v1.ServiceAccount](v1.SchemeGroupVersion, true),
		kindOf[kubeapi.Endpoints](v1.SchemeGroupVersion, true),
		kindOf[storagev1.StorageClass](storagev1.SchemeGroupVersion, false),
		kindOf[storagev1.VolumeAttributesClass](storagev1.SchemeGroupVersion, false),
		kindOf[storagev1.CSIDriver](storagev1.SchemeGroupVersion, false),
		kindOf[storagev1.CSINode](storagev1.SchemeGroupVersion, false),
		kindWithStatus(storagev1.SchemeGroupVersion, false, func(o *storagev1.VolumeAttachment) *storagev1.VolumeAttachmentStatus { return &o.Status }),
		kindOf[storagev1.CSIStorageCapacity](storagev1.SchemeGroupVersion, true),
		trustBundles(),
	}
})

// trustBundles is the kind of the newest version that k8s.io/api has.
func trustBundles() kind {
	return kind{goType: reflect.TypeOf(kubeapi.NewTrustBundle()), shallow: deep, Kind: Kind{
		GroupVersionKind: kubeapi.TrustBundleVersion().WithKind("ClusterTrustBundle"),
		New:              kubeapi.NewTrustBundle,
	}}
}

// pointerTo is the Go type of stored objects of a kind.
type pointerTo[T any] interface {
	*T
	stored
}

// kindOf is the kind of a Go type, whose name is the kind's.
func kindOf[T any, P pointerTo[T]](version schema.GroupVersion, namespaced bool) kind {
	return kind{
		goType: reflect.TypeFor[P](),
		shallow: func(object metav1.Object) stored {
			c := *object.(P)
			return P(&c)
		},
		Kind: Kind{
			GroupVersionKind: version.WithKind(reflect.TypeFor[T]().Name()),
			Namespaced:       namespaced,
			New:              func() metav1.Object { return P(new(T)) },
		},
	}
}

func kindWithStatus[T, S any, P pointerTo[T], PS interface {
	*S
	DeepCopyInto(*S)
}](version schema.GroupVersion, namespaced bool, status func(P) PS) kind {
	k := kindOf[T, P](version, namespaced)
	k.status = &statusOf{
		without: func(object metav1.Object) stored {
			rest := *object.(P)
			*status(&rest) = *new(S)
			return P(&rest).DeepCopyObject().(stored)
		},
		share: func(to stored, from metav1.Object) { *status(to.(P)) = *status(from.(P)) },
		copy:  func(to stored, from metav1.Object) { status(from.(P)).DeepCopyInto(status(to.(P))) },
		equal: func(a, b stored) bool { return equality.Semantic.DeepEqual(status(a.(P)), status(b.(P))) },
	}
	return k
}

// Kinds returns the kinds that a [Store] keeps. The caller owns the slice.
func Kinds() []Kind {
	all := make([]Kind, 0, len(kinds()))
	for _, k := range kinds() {
		all = append(all, k.Kind)
	}
	return all
}

func kindNamed(name string) (kind, bool) {
	i := slices.IndexFunc(kinds(), func(k kind) bool { return k.Kind.Kind == name })
	if i < 0 {
		return kind{}, false
	}
	return kinds()[i], true
}

// Describe returns the kind and the reference of an object. The errors:
//
//   - An *[UnknownKindError]: the type is none of [Kinds].
//   - A *[volume.InvalidSpecError]: the object has no name; or it has no
//     namespace and its kind needs one; or it has a namespace and its kind allows
//     none.
func Describe(object metav1.Object) (Kind, volume.ObjectRef, error) {
	k, ref, err := describe(object)
	return k.Kind, ref, err
}

// describe is [Describe] for the store, which needs more of a kind.
func describe(object metav1.Object) (kind, volume.ObjectRef, error) {
	goType := reflect.TypeOf(object)
	i := slices.IndexFunc(kinds(), func(k kind) bool { return k.goType == goType })
	if i < 0 {
		return kind{}, volume.ObjectRef{}, &UnknownKindError{Kind: fmt.Sprintf("%T", object)}
	}
	k := kinds()[i]
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

// deep copies an object with all its parts.
func deep(object metav1.Object) stored { return object.(stored).DeepCopyObject().(stored) }

// clone copies an object and names its kind in it.
func clone(k kind, object metav1.Object) stored {
	c := deep(object)
	c.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	return c
}

// cloneWithoutStatus is [clone] without the status.
func cloneWithoutStatus(k kind, object metav1.Object) stored {
	if k.status == nil {
		return clone(k, object)
	}
	c := k.status.without(object)
	c.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	return c
}

// adopt is [clone] for an object whose parts nobody will change any more: it shares them.
func adopt(k kind, object metav1.Object) stored {
	c := k.shallow(object)
	c.GetObjectKind().SetGroupVersionKind(k.GroupVersionKind)
	return c
}
