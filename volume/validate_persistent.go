package volume

import (
	"fmt"
	"path"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ValidatePersistentVolume refuses a PersistentVolume that the API server
// would refuse: name, capacity, access modes, exactly one source and its
// fields, class, reclaim policy, volume mode, claimRef and node affinity. The
// error is as of [ValidatePodVolumes].
func ValidatePersistentVolume(pv *v1.PersistentVolume) error {
	if pv == nil {
		return Invalid("PersistentVolume", "is missing")
	}
	var c checker
	c.names("metadata.name", pv.Name, validation.IsDNS1123Subdomain)
	if pv.Namespace != "" {
		c.refuse("metadata.namespace", "a PersistentVolume belongs to no namespace")
	}
	c.storage("spec.capacity", pv.Spec.Capacity)
	c.accessModes(pv.Spec.AccessModes)
	c.className(pv.Spec.StorageClassName)
	c.volumeMode(pv.Spec.VolumeMode)
	c.reclaim(&pv.Spec)
	c.oneSource("spec", NewSpecFromPersistentVolume(pv, false))
	c.persistentSource(&pv.Spec)
	c.claimRef(pv.Spec.ClaimRef)
	if _, err := MatchesNode(pv, nil, ""); err != nil {
		c.faults = append(c.faults, err)
	}
	return c.err()
}

// ValidatePersistentVolumeClaim refuses a claim that the API server would
// refuse: names, access modes, requested size, class, selector and volume
// mode. The error is as of [ValidatePodVolumes].
func ValidatePersistentVolumeClaim(pvc *v1.PersistentVolumeClaim) error {
	if pvc == nil {
		return Invalid("PersistentVolumeClaim", "is missing")
	}
	var c checker
	c.names("metadata.name", pvc.Name, validation.IsDNS1123Subdomain)
	c.names("metadata.namespace", pvc.Namespace, validation.IsDNS1123Label)
	c.storage("spec.resources.requests", pvc.Spec.Resources.Requests)
	c.accessModes(pvc.Spec.AccessModes)
	if class := pvc.Spec.StorageClassName; class != nil {
		c.className(*class)
	}
	c.volumeMode(pvc.Spec.VolumeMode)
	if pvc.Spec.VolumeName != "" {
		c.names("spec.volumeName", pvc.Spec.VolumeName, validation.IsDNS1123Subdomain)
	}
	c.labelSelector("spec.selector", pvc.Spec.Selector)
	return c.err()
}

func (c *checker) storage(field string, list v1.ResourceList) {
	size, ok := list[v1.ResourceStorage]
	switch {
	case !ok:
		c.refuse(field+".storage", "is missing; an example is 1Gi")
	case size.Sign() <= 0:
		c.refuse(field+".storage", "%s must be greater than zero", size.String())
	}
}

func (c *checker) accessModes(modes []v1.PersistentVolumeAccessMode) {
	if len(modes) == 0 {
		c.refuse("spec.accessModes", "must name at least one mode")
	}
	for i, mode := range modes {
		switch mode {
		case v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod:
		default:
			c.refuse(fmt.Sprintf("spec.accessModes[%d]", i), "%q is not one of ReadWriteOnce, ReadOnlyMany, ReadWriteMany, ReadWriteOncePod", mode)
		}
	}
	if len(modes) > 1 && slices.Contains(modes, v1.ReadWriteOncePod) {
		c.refuse("spec.accessModes", "ReadWriteOncePod excludes every other mode")
	}
}

func (c *checker) className(class string) {
	if class != "" {
		c.names("spec.storageClassName", class, validation.IsDNS1123Subdomain)
	}
}

func (c *checker) volumeMode(mode *v1.PersistentVolumeMode) {
	if mode != nil && *mode != v1.PersistentVolumeFilesystem && *mode != v1.PersistentVolumeBlock {
		c.refuse("spec.volumeMode", "%q is not one of Filesystem, Block", *mode)
	}
}

func (c *checker) reclaim(spec *v1.PersistentVolumeSpec) {
	switch spec.PersistentVolumeReclaimPolicy {
	case "", v1.PersistentVolumeReclaimRetain, v1.PersistentVolumeReclaimDelete:
	case v1.PersistentVolumeReclaimRecycle:
		if spec.HostPath != nil && path.Clean(spec.HostPath.Path) == "/" {
			c.refuse("spec.persistentVolumeReclaimPolicy", "Recycle would empty the host's root directory")
		}
	default:
		c.refuse("spec.persistentVolumeReclaimPolicy", "%q is not one of Retain, Delete, Recycle", spec.PersistentVolumeReclaimPolicy)
	}
}

func (c *checker) persistentSource(spec *v1.PersistentVolumeSpec) {
	if s := spec.HostPath; s != nil {
		c.hostPath("spec.hostPath", s)
	}
	if s := spec.NFS; s != nil {
		c.nfs("spec.nfs", s)
	}
	if s := spec.Local; s != nil {
		c.absolutePath("spec.local.path", s.Path)
		if spec.NodeAffinity == nil || spec.NodeAffinity.Required == nil {
			c.refuse("spec.nodeAffinity.required", "is missing; a local volume must say on which node it is")
		}
	}
	if s := spec.CSI; s != nil {
		c.required("spec.csi.driver", s.Driver)
		c.required("spec.csi.volumeHandle", s.VolumeHandle)
	}
}

func (c *checker) claimRef(ref *v1.ObjectReference) {
	if ref == nil {
		return
	}
	if ref.Kind != "" && ref.Kind != "PersistentVolumeClaim" {
		c.refuse("spec.claimRef.kind", "%q is not PersistentVolumeClaim", ref.Kind)
	}
	c.names("spec.claimRef.name", ref.Name, validation.IsDNS1123Subdomain)
	c.names("spec.claimRef.namespace", ref.Namespace, validation.IsDNS1123Label)
	if ref.UID != "" {
		c.segment("spec.claimRef.uid", string(ref.UID))
	}
}
