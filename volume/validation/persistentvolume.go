package validation

import (
	"maps"
	"path"
	"reflect"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/claimbinding"
)

// PersistentVolume refuses a PersistentVolume that the API server would
// refuse. It checks name, labels, annotations, capacity, access modes, exactly
// one source and its fields, classes, reclaim policy, volume mode, claimRef and
// node affinity. The error is as with [PodVolumes].
func PersistentVolume(pv *v1.PersistentVolume) error {
	if pv == nil {
		return volume.Invalid("PersistentVolume", "is missing")
	}
	var c checker
	c.clusterMeta(&pv.ObjectMeta, "PersistentVolume")
	c.capacity("spec.capacity", pv.Spec.Capacity)
	c.accessModes("spec.accessModes", pv.Spec.AccessModes)
	c.className("spec.storageClassName", &pv.Spec.StorageClassName)
	c.attributesClass(&pv.Spec)
	c.volumeMode("spec.volumeMode", pv.Spec.VolumeMode)
	c.reclaim(&pv.Spec)
	c.oneSource("spec", volume.NewSpecFromPersistentVolume(pv, false))
	c.persistentSource(pv.Name, &pv.Spec)
	c.claimRef(pv.Spec.ClaimRef)
	c.nodeAffinity("spec.nodeAffinity", pv)
	return c.err()
}

// clusterMeta checks the metadata of cluster-wide objects.
func (c *checker) clusterMeta(meta *metav1.ObjectMeta, kind string) {
	c.names("metadata.name", meta.Name, validation.IsDNS1123Subdomain)
	if meta.Namespace != "" {
		c.refuse("metadata.namespace", "a %s belongs to no namespace; remove it", kind)
	}
	c.labelsAndAnnotations("metadata", meta)
}

func (c *checker) labelsAndAnnotations(at string, meta *metav1.ObjectMeta) {
	c.addAll(metav1validation.ValidateLabels(meta.Labels, field.NewPath(at, "labels")))
	c.addAll(apivalidation.ValidateAnnotations(meta.Annotations, field.NewPath(at, "annotations")))
}

func (c *checker) capacity(at string, capacity v1.ResourceList) {
	size, ok := capacity[v1.ResourceStorage]
	c.storage(at+".storage", size, ok)
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		if name != v1.ResourceStorage {
			c.refuse(at, "%q is not storage, the only resource there is; remove it", name)
		}
	}
}

func (c *checker) storage(at string, size resource.Quantity, ok bool) {
	switch {
	case !ok:
		c.refuse(at, "is missing; an example is 1Gi")
	case size.Sign() <= 0:
		c.refuse(at, "%s must be greater than zero", size.String())
	}
}

func (c *checker) attributesClass(spec *v1.PersistentVolumeSpec) {
	if spec.VolumeAttributesClassName == nil {
		return
	}
	c.names("spec.volumeAttributesClassName", *spec.VolumeAttributesClassName, validation.IsDNS1123Subdomain)
	if spec.CSI == nil {
		c.refuse("spec.csi", "is missing; only CSI volumes have a volumeAttributesClassName")
	}
}

// nodeAffinity checks the selector of the nodes that can reach the volume.
func (c *checker) nodeAffinity(at string, pv *v1.PersistentVolume) {
	affinity := pv.Spec.NodeAffinity
	switch {
	case affinity == nil && pv.Spec.Local != nil:
		c.refuse(at+".required", "is missing; a local volume must say on which node it is")
	case affinity == nil:
	case affinity.Required == nil:
		c.refuse(at+".required", "is missing; say which nodes, or remove nodeAffinity")
	case len(affinity.Required.NodeSelectorTerms) == 0:
		c.refuse(at+".required.nodeSelectorTerms", "must have at least one term")
	default:
		_, err := claimbinding.MatchesNode(pv, nil, "")
		c.add(err)
	}
}

func (c *checker) reclaim(spec *v1.PersistentVolumeSpec) {
	switch spec.PersistentVolumeReclaimPolicy {
	case "", v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimDelete:
	case v1.PersistentVolumeReclaimRecycle:
		if spec.HostPath != nil && path.Clean(spec.HostPath.Path) == "/" {
			c.refuse("spec.persistentVolumeReclaimPolicy", "Recycle would empty the host's root directory; use Retain")
		}
	default:
		c.refuse("spec.persistentVolumeReclaimPolicy", "%q is not one of Retain, Delete, Recycle", spec.PersistentVolumeReclaimPolicy)
	}
}

func (c *checker) persistentSource(name string, spec *v1.PersistentVolumeSpec) {
	if s := spec.HostPath; s != nil {
		c.hostPath("spec.hostPath", s)
	}
	if s := spec.NFS; s != nil {
		c.nfs("spec.nfs", s)
	}
	if s := spec.Local; s != nil {
		c.absolutePath("spec.local.path", s.Path)
	}
	c.otherTypes("spec", name, reflect.ValueOf(spec.PersistentVolumeSource))
}

func (c *checker) claimRef(ref *v1.ObjectReference) {
	if ref == nil {
		return
	}
	if ref.Kind != "" && ref.Kind != kindClaim {
		c.refuse("spec.claimRef.kind", "must be %[2]s, is %[1]q", ref.Kind, kindClaim)
	}
	c.names("spec.claimRef.name", ref.Name, validation.IsDNS1123Subdomain)
	c.names("spec.claimRef.namespace", ref.Namespace, validation.IsDNS1123Label)
	if ref.UID != "" {
		c.segment("spec.claimRef.uid", string(ref.UID))
	}
}
