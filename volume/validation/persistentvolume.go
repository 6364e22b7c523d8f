package validation

import (
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

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
	typeChecker{&c.faults}.otherTypes("spec", name, reflect.ValueOf(spec.PersistentVolumeSource))
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

// Bounds of a StorageClass' parameters, as in the API.
const (
	maxParameters     = 512
	maxParameterBytes = 256 << 10
)

// StorageClass refuses a StorageClass that the API server would refuse.
// It checks name, labels, annotations, provisioner, parameters, reclaim policy,
// binding mode and allowed topologies. A field that is not set has the API
// server's default. The error is as with [PodVolumes].
func StorageClass(class *storagev1.StorageClass) error {
	if class == nil {
		return volume.Invalid("StorageClass", "is missing")
	}
	var c checker
	c.clusterMeta(&class.ObjectMeta, "StorageClass")
	if class.Provisioner == "" {
		c.refuse("provisioner", "must not be empty; kubernetes.io/no-provisioner is the one that makes no volumes")
	} else if wrong := validation.IsQualifiedName(strings.ToLower(class.Provisioner)); len(wrong) > 0 {
		c.refuse("provisioner", "%q is no valid name: %s", class.Provisioner, strings.Join(wrong, "; "))
	}
	c.parameters("parameters", class.Parameters)
	if p := class.ReclaimPolicy; p != nil {
		oneOf(&c.faults, "reclaimPolicy", *p, v1.PersistentVolumeReclaimDelete, v1.PersistentVolumeReclaimRetain)
	}
	if m := class.VolumeBindingMode; m != nil {
		oneOf(&c.faults, "volumeBindingMode", *m, storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer)
	}
	c.topologies("allowedTopologies", class.AllowedTopologies)
	return c.err()
}

func (c *checker) parameters(at string, parameters map[string]string) {
	if len(parameters) > maxParameters {
		c.refuse(at, "there are %d, at most %d are allowed", len(parameters), maxParameters)
	}
	size := 0
	for key, value := range parameters {
		size += len(key) + len(value)
	}
	if size > maxParameterBytes {
		c.refuse(at, "they have %d bytes, at most %d are allowed", size, maxParameterBytes)
	}
	if _, ok := parameters[""]; ok {
		c.refuse(at, "a key must not be empty; name it")
	}
}

func (c *checker) topologies(at string, terms []v1.TopologySelectorTerm) {
	for i, term := range terms {
		at := fmt.Sprintf("%s[%d]", at, i)
		if slices.ContainsFunc(terms[:i], func(other v1.TopologySelectorTerm) bool { return equality.Semantic.DeepEqual(other, term) }) {
			c.refuse(at, "is there already; remove one")
		}
		keys := make(map[string]bool)
		for j, e := range term.MatchLabelExpressions {
			at := fmt.Sprintf("%s.matchLabelExpressions[%d]", at, j)
			c.names(at+".key", e.Key, validation.IsQualifiedName)
			if keys[e.Key] {
				c.refuse(at+".key", "%q is the key of another expression of this term; put the values together", e.Key)
			}
			keys[e.Key] = true
			c.topologyValues(at+".values", e.Values)
		}
	}
}

func (c *checker) topologyValues(at string, values []string) {
	if len(values) == 0 {
		c.refuse(at, "must name at least one value")
	}
	for i, value := range values {
		at := fmt.Sprintf("%s[%d]", at, i)
		if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
			c.refuse(at, "%q is no value of a label: %s", value, strings.Join(wrong, "; "))
		}
		if slices.Contains(values[:i], value) {
			c.refuse(at, "%q is there already; remove one", value)
		}
	}
}
