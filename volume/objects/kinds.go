package objects

import (
	"fmt"

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

// kind is what the store must know about one kind of object.
type kind struct {
	gvk        schema.GroupVersionKind
	namespaced bool
	// moveStatus makes to's status from's; nil where the kind has no status.
	// The two share memory afterwards.
	moveStatus func(to, from metav1.Object)
}

// kinds is the table of everything that is kept.
var kinds = []kind{
	{gvk: v1.SchemeGroupVersion.WithKind("Pod"), namespaced: true,
		moveStatus: func(to, from metav1.Object) { to.(*v1.Pod).Status = from.(*v1.Pod).Status }},
	{gvk: v1.SchemeGroupVersion.WithKind("PersistentVolume"),
		moveStatus: func(to, from metav1.Object) {
			to.(*v1.PersistentVolume).Status = from.(*v1.PersistentVolume).Status
		}},
	{gvk: v1.SchemeGroupVersion.WithKind("PersistentVolumeClaim"), namespaced: true,
		moveStatus: func(to, from metav1.Object) {
			to.(*v1.PersistentVolumeClaim).Status = from.(*v1.PersistentVolumeClaim).Status
		}},
	{gvk: v1.SchemeGroupVersion.WithKind("Node"),
		moveStatus: func(to, from metav1.Object) { to.(*v1.Node).Status = from.(*v1.Node).Status }},
	{gvk: v1.SchemeGroupVersion.WithKind("ConfigMap"), namespaced: true},
	{gvk: v1.SchemeGroupVersion.WithKind("Secret"), namespaced: true},
	{gvk: v1.SchemeGroupVersion.WithKind("ServiceAccount"), namespaced: true},
	{gvk: storagev1.SchemeGroupVersion.WithKind("StorageClass")},
	{gvk: certificatesv1beta1.SchemeGroupVersion.WithKind("ClusterTrustBundle")},
}

// kindOf names the kind of a Go value.
func kindOf(object metav1.Object) string {
	switch object.(type) {
	case *v1.Pod:
		return "Pod"
	case *v1.PersistentVolume:
		return "PersistentVolume"
	case *v1.PersistentVolumeClaim:
		return "PersistentVolumeClaim"
	case *v1.Node:
		return "Node"
	case *v1.ConfigMap:
		return "ConfigMap"
	case *v1.Secret:
		return "Secret"
	case *v1.ServiceAccount:
		return "ServiceAccount"
	case *storagev1.StorageClass:
		return "StorageClass"
	case *certificatesv1beta1.ClusterTrustBundle:
		return "ClusterTrustBundle"
	}
	return ""
}

func kindNamed(name string) (kind, bool) {
	for _, k := range kinds {
		if k.gvk.Kind == name {
			return k, true
		}
	}
	return kind{}, false
}

// describe returns an object's kind and reference, and refuses what the store
// could not keep.
func describe(object metav1.Object) (kind, volume.ObjectRef, error) {
	k, ok := kindNamed(kindOf(object))
	if !ok {
		return kind{}, volume.ObjectRef{}, &UnknownKindError{Kind: fmt.Sprintf("%T", object)}
	}
	ref := volume.NewObjectRef(k.gvk.Kind, object.GetNamespace(), object.GetName())
	switch {
	case ref.Name == "":
		return k, ref, volume.Invalid("metadata.name", "a %s must have a name", ref.Kind)
	case k.namespaced && ref.Namespace == "":
		return k, ref, volume.Invalid("metadata.namespace", "%s must have a namespace", ref)
	case !k.namespaced && ref.Namespace != "":
		return k, ref, volume.Invalid("metadata.namespace", "a %s belongs to no namespace", ref.Kind)
	}
	return k, ref, nil
}

// RefOf returns the reference to an object of a kind that [Store] keeps, by
// its Go type; for others the error is an *[UnknownKindError].
func RefOf(object metav1.Object) (volume.ObjectRef, error) {
	name := kindOf(object)
	if name == "" {
		return volume.ObjectRef{}, &UnknownKindError{Kind: fmt.Sprintf("%T", object)}
	}
	return volume.NewObjectRef(name, object.GetNamespace(), object.GetName()), nil
}

func clone(k kind, object metav1.Object) stored {
	c := object.(stored).DeepCopyObject().(stored)
	c.GetObjectKind().SetGroupVersionKind(k.gvk)
	return c
}
