package validation

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/volume"
)

const kindClaim = "PersistentVolumeClaim"

// PersistentVolumeClaim refuses a claim that the API server would refuse.
// It checks names, labels, annotations, access modes, requested size, classes,
// selector, volume mode and data source. The error is as with
// [PodVolumes].
func PersistentVolumeClaim(pvc *v1.PersistentVolumeClaim) error {
	if pvc == nil {
		return volume.Invalid(kindClaim, "is missing")
	}
	var c checker
	c.names("metadata.name", pvc.Name, validation.IsDNS1123Subdomain)
	c.names("metadata.namespace", pvc.Namespace, validation.IsDNS1123Label)
	c.labelsAndAnnotations("metadata", &pvc.ObjectMeta)
	c.claimSpec("spec", &pvc.Spec)
	return c.err()
}

// claimTemplate checks the template of a claim. Of its metadata only labels and
// annotations are used.
func (c *checker) claimTemplate(at string, template *v1.PersistentVolumeClaimTemplate) {
	c.labelsAndAnnotations(at+".metadata", &template.ObjectMeta)
	rest := template.ObjectMeta.DeepCopy()
	rest.Labels, rest.Annotations = nil, nil
	if !equality.Semantic.DeepEqual(*rest, metav1.ObjectMeta{}) {
		c.refuse(at+".metadata", "only labels and annotations can be set; remove the rest: the claim is named after pod and volume")
	}
	c.claimSpec(at+".spec", &template.Spec)
}

func (c *checker) claimSpec(at string, spec *v1.PersistentVolumeClaimSpec) {
	size, ok := spec.Resources.Requests[v1.ResourceStorage]
	c.storage(at+".resources.requests.storage", size, ok)
	c.accessModes(at+".accessModes", spec.AccessModes)
	c.className(at+".storageClassName", spec.StorageClassName)
	c.className(at+".volumeAttributesClassName", spec.VolumeAttributesClassName)
	c.volumeMode(at+".volumeMode", spec.VolumeMode)
	if spec.VolumeName != "" {
		c.names(at+".volumeName", spec.VolumeName, validation.IsDNS1123Subdomain)
	}
	c.labelSelector(at+".selector", spec.Selector)
	c.dataSources(at, spec)
}

func (c *checker) dataSources(at string, spec *v1.PersistentVolumeClaimSpec) {
	source, ref := spec.DataSource, spec.DataSourceRef
	if source != nil {
		c.dataSource(at+".dataSource", source.APIGroup, source.Kind, source.Name)
	}
	if ref == nil {
		return
	}
	c.dataSource(at+".dataSourceRef", ref.APIGroup, ref.Kind, ref.Name)
	elsewhere := ref.Namespace != nil && *ref.Namespace != ""
	if elsewhere {
		c.names(at+".dataSourceRef.namespace", *ref.Namespace, validation.IsDNS1123Label)
	}
	switch {
	case source == nil:
	case elsewhere:
		c.refuse(at+".dataSource", "cannot be set beside dataSourceRef.namespace; remove it")
	case !equality.Semantic.DeepEqual(source.APIGroup, ref.APIGroup) || source.Kind != ref.Kind || source.Name != ref.Name:
		c.refuse(at+".dataSource", "must be the same as dataSourceRef; remove one")
	}
}

func (c *checker) dataSource(at string, group *string, kind, name string) {
	c.required(at+".name", name)
	c.required(at+".kind", kind)
	if group != nil && *group != "" {
		c.names(at+".apiGroup", *group, validation.IsDNS1123Subdomain)
	} else if kind != "" && kind != kindClaim {
		c.refuse(at+".kind", "without an apiGroup it must be %s, is %q", kindClaim, kind)
	}
}

func (c *checker) accessModes(at string, modes []v1.PersistentVolumeAccessMode) {
	if len(modes) == 0 {
		c.refuse(at, "must name at least one mode")
	}
	for i, mode := range modes {
		oneOf(&c.faults, fmt.Sprintf("%s[%d]", at, i), mode, v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod)
	}
	if len(modes) > 1 && slices.Contains(modes, v1.ReadWriteOncePod) {
		c.refuse(at, "ReadWriteOncePod excludes every other mode; name it alone")
	}
}

// className checks the name of a class. The empty name means no class.
func (c *checker) className(at string, class *string) {
	if class != nil && *class != "" {
		c.names(at, *class, validation.IsDNS1123Subdomain)
	}
}

func (c *checker) volumeMode(at string, mode *v1.PersistentVolumeMode) {
	if mode != nil {
		oneOf(&c.faults, at, *mode, v1.PersistentVolumeFilesystem, v1.PersistentVolumeBlock)
	}
}
