package cluster

import (
	"context"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume/internal/following"
	"github.com/podvol/podvol/volume/objects"
)

// resource is a kind as the API serves it, with requests for objects of any Go
// type.
type resource struct {
	resource schema.GroupVersionResource
	get      func(ctx context.Context, c kubernetes.Interface, namespace, name string) (metav1.Object, error)
	list     func(ctx context.Context, c kubernetes.Interface, namespace string, options metav1.ListOptions) (runtime.Object, error)
	watch    func(ctx context.Context, c kubernetes.Interface, namespace string, options metav1.ListOptions) (watch.Interface, error)
	create   func(ctx context.Context, c kubernetes.Interface, object metav1.Object) (metav1.Object, error)
	update   func(ctx context.Context, c kubernetes.Interface, object metav1.Object) (metav1.Object, error)
	// updateStatus is nil if the kind has no status.
	updateStatus func(ctx context.Context, c kubernetes.Interface, object metav1.Object) (metav1.Object, error)
	remove       func(ctx context.Context, c kubernetes.Interface, namespace, name string, options metav1.DeleteOptions) error
}

// resources has every kind of [objects.Kinds].
var resources = map[string]resource{
	"Pod": withStatus(plain(v1.SchemeGroupVersion.WithResource("pods"),
		func(c kubernetes.Interface, ns string) client[*v1.Pod, *v1.PodList] { return c.CoreV1().Pods(ns) }),
		func(c kubernetes.Interface, ns string) statusClient[*v1.Pod] { return c.CoreV1().Pods(ns) }),
	"PersistentVolume": withStatus(plain(v1.SchemeGroupVersion.WithResource("persistentvolumes"),
		func(c kubernetes.Interface, _ string) client[*v1.PersistentVolume, *v1.PersistentVolumeList] {
			return c.CoreV1().PersistentVolumes()
		}),
		func(c kubernetes.Interface, _ string) statusClient[*v1.PersistentVolume] {
			return c.CoreV1().PersistentVolumes()
		}),
	"PersistentVolumeClaim": withStatus(plain(v1.SchemeGroupVersion.WithResource("persistentvolumeclaims"),
		func(c kubernetes.Interface, ns string) client[*v1.PersistentVolumeClaim, *v1.PersistentVolumeClaimList] {
			return c.CoreV1().PersistentVolumeClaims(ns)
		}),
		func(c kubernetes.Interface, ns string) statusClient[*v1.PersistentVolumeClaim] {
			return c.CoreV1().PersistentVolumeClaims(ns)
		}),
	"Node": withStatus(plain(v1.SchemeGroupVersion.WithResource("nodes"),
		func(c kubernetes.Interface, _ string) client[*v1.Node, *v1.NodeList] { return c.CoreV1().Nodes() }),
		func(c kubernetes.Interface, _ string) statusClient[*v1.Node] { return c.CoreV1().Nodes() }),
	"ConfigMap": plain(v1.SchemeGroupVersion.WithResource("configmaps"),
		func(c kubernetes.Interface, ns string) client[*v1.ConfigMap, *v1.ConfigMapList] {
			return c.CoreV1().ConfigMaps(ns)
		}),
	"Secret": plain(v1.SchemeGroupVersion.WithResource("secrets"),
		func(c kubernetes.Interface, ns string) client[*v1.Secret, *v1.SecretList] {
			return c.CoreV1().Secrets(ns)
		}),
	"ServiceAccount": plain(v1.SchemeGroupVersion.WithResource("serviceaccounts"),
		func(c kubernetes.Interface, ns string) client[*v1.ServiceAccount, *v1.ServiceAccountList] {
			return c.CoreV1().ServiceAccounts(ns)
		}),
	"Endpoints": plain(v1.SchemeGroupVersion.WithResource("endpoints"),
		func(c kubernetes.Interface, ns string) client[*kubeapi.Endpoints, *kubeapi.EndpointsList] {
			return c.CoreV1().Endpoints(ns)
		}),
	"StorageClass": plain(storagev1.SchemeGroupVersion.WithResource("storageclasses"),
		func(c kubernetes.Interface, _ string) client[*storagev1.StorageClass, *storagev1.StorageClassList] {
			return c.StorageV1().StorageClasses()
		}),
	"VolumeAttributesClass": plain(storagev1.SchemeGroupVersion.WithResource("volumeattributesclasses"),
		func(c kubernetes.Interface, _ string) client[*storagev1.VolumeAttributesClass, *storagev1.VolumeAttributesClassList] {
			return c.StorageV1().VolumeAttributesClasses()
		}),
	"CSIDriver": plain(storagev1.SchemeGroupVersion.WithResource("csidrivers"),
		func(c kubernetes.Interface, _ string) client[*storagev1.CSIDriver, *storagev1.CSIDriverList] {
			return c.StorageV1().CSIDrivers()
		}),
	"CSINode": plain(storagev1.SchemeGroupVersion.WithResource("csinodes"),
		func(c kubernetes.Interface, _ string) client[*storagev1.CSINode, *storagev1.CSINodeList] {
			return c.StorageV1().CSINodes()
		}),
	"VolumeAttachment": withStatus(plain(storagev1.SchemeGroupVersion.WithResource("volumeattachments"),
		func(c kubernetes.Interface, _ string) client[*storagev1.VolumeAttachment, *storagev1.VolumeAttachmentList] {
			return c.StorageV1().VolumeAttachments()
		}),
		func(c kubernetes.Interface, _ string) statusClient[*storagev1.VolumeAttachment] {
			return c.StorageV1().VolumeAttachments()
		}),
	"CSIStorageCapacity": plain(storagev1.SchemeGroupVersion.WithResource("csistoragecapacities"),
		func(c kubernetes.Interface, ns string) client[*storagev1.CSIStorageCapacity, *storagev1.CSIStorageCapacityList] {
			return c.StorageV1().CSIStorageCapacities(ns)
		}),
	"ClusterTrustBundle": plain(kubeapi.TrustBundleVersion().WithResource("clustertrustbundles"),
		func(c kubernetes.Interface, _ string) client[metav1.Object, runtime.Object] {
			return following.TrustBundles(c)
		}),
}

func resourceOf(kind string) (resource, error) {
	r, ok := resources[kind]
	if !ok {
		return resource{}, &objects.UnknownKindError{Kind: kind}
	}
	return r, nil
}

// client is the common part of all typed clients of client-go.
type client[P metav1.Object, L runtime.Object] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (P, error)
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
	Create(ctx context.Context, object P, options metav1.CreateOptions) (P, error)
	Update(ctx context.Context, object P, options metav1.UpdateOptions) (P, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}

type statusClient[P metav1.Object] interface {
	UpdateStatus(ctx context.Context, object P, options metav1.UpdateOptions) (P, error)
}

// plain is the resource behind a typed client.
func plain[P metav1.Object, L runtime.Object](gvr schema.GroupVersionResource, of func(kubernetes.Interface, string) client[P, L]) resource {
	return resource{
		resource: gvr,
		get: func(ctx context.Context, c kubernetes.Interface, namespace, name string) (metav1.Object, error) {
			return of(c, namespace).Get(ctx, name, metav1.GetOptions{})
		},
		list: func(ctx context.Context, c kubernetes.Interface, namespace string, options metav1.ListOptions) (runtime.Object, error) {
			return of(c, namespace).List(ctx, options)
		},
		watch: func(ctx context.Context, c kubernetes.Interface, namespace string, options metav1.ListOptions) (watch.Interface, error) {
			return of(c, namespace).Watch(ctx, options)
		},
		create: func(ctx context.Context, c kubernetes.Interface, object metav1.Object) (metav1.Object, error) {
			return of(c, object.GetNamespace()).Create(ctx, object.(P), metav1.CreateOptions{})
		},
		update: func(ctx context.Context, c kubernetes.Interface, object metav1.Object) (metav1.Object, error) {
			return of(c, object.GetNamespace()).Update(ctx, object.(P), metav1.UpdateOptions{})
		},
		remove: func(ctx context.Context, c kubernetes.Interface, namespace, name string, options metav1.DeleteOptions) error {
			return of(c, namespace).Delete(ctx, name, options)
		},
	}
}

func withStatus[P metav1.Object](r resource, of func(kubernetes.Interface, string) statusClient[P]) resource {
	r.updateStatus = func(ctx context.Context, c kubernetes.Interface, object metav1.Object) (metav1.Object, error) {
		return of(c, object.GetNamespace()).UpdateStatus(ctx, object.(P), metav1.UpdateOptions{})
	}
	return r
}
