package persistentvolume

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations of storage classes, claims and volumes.
const (
	annDefaultClass     = "storageclass.kubernetes.io/is-default-class"
	annDefaultClassBeta = "storageclass.beta.kubernetes.io/is-default-class"
	annClassBeta        = v1.BetaStorageClassAnnotation
)

// DefaultClass returns the name of the default storage class, or "" where
// there is none. Of several, the one created last is it, then the first by
// name, as in Kubernetes.
func DefaultClass(classes []*storagev1.StorageClass) string {
	defaults := slices.DeleteFunc(slices.Clone(classes), func(c *storagev1.StorageClass) bool {
		return c.Annotations[annDefaultClass] != "true" && c.Annotations[annDefaultClassBeta] != "true"
	})
	if len(defaults) == 0 {
		return ""
	}
	return slices.MinFunc(defaults, func(a, b *storagev1.StorageClass) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	}).Name
}

// wantsDefaultClass reports whether a claim names no class, not even "".
func wantsDefaultClass(claim *v1.PersistentVolumeClaim) bool {
	_, named := annotation(&claim.ObjectMeta, annClassBeta)
	return !named && claim.Spec.StorageClassName == nil
}

// claimClass returns the class of a claim: what it names, "" included, else
// the default.
func claimClass(pvc *v1.PersistentVolumeClaim, defaultClass string) string {
	if class, ok := annotation(&pvc.ObjectMeta, annClassBeta); ok {
		return class
	}
	if pvc.Spec.StorageClassName != nil {
		return *pvc.Spec.StorageClassName
	}
	return defaultClass
}

func volumeClass(pv *v1.PersistentVolume) string {
	if class, ok := annotation(&pv.ObjectMeta, annClassBeta); ok {
		return class
	}
	return pv.Spec.StorageClassName
}

func annotation(meta *metav1.ObjectMeta, key string) (string, bool) {
	value, ok := meta.Annotations[key]
	return value, ok
}
