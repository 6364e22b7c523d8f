package sharedirs

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// CheckClaim refuses a claim that asks for what a directory on the medium cannot
// do, with a *[volume.InvalidSpecError]. Offered are the access modes that it has.
func CheckClaim(options volume.VolumeOptions, on Medium, offered []v1.PersistentVolumeAccessMode) error {
	claim := options.PVC
	if err := volume.CheckPathSegment("PersistentVolume's name", options.PVName); err != nil {
		return err
	}
	if claim == nil {
		return volume.Invalid("PersistentVolumeClaim", "is missing")
	}
	if claim.UID == "" {
		return volume.Invalid("metadata.uid", "a claim without UID cannot be told from a later one of its name")
	}
	spec := &claim.Spec
	switch {
	case spec.VolumeMode != nil && *spec.VolumeMode != v1.PersistentVolumeFilesystem:
		return volume.Invalid("spec.volumeMode", "is %q; %s, use volumeMode: Filesystem", *spec.VolumeMode, on.noDevice())
	case spec.Selector != nil:
		return volume.Invalid("spec.selector", "selects among volumes that exist; a new one has no labels, drop the selector or the class")
	case spec.DataSource != nil || spec.DataSourceRef != nil:
		return volume.Invalid("spec.dataSource", "copies of volumes and snapshots cannot be made here; drop it and copy the data yourself")
	case options.VolumeAttributesClass != nil:
		return volume.Invalid("spec.volumeAttributesClassName", "is %q; a directory has no such attributes, drop it", options.VolumeAttributesClass.Name)
	case len(spec.AccessModes) == 0:
		return volume.Invalid("spec.accessModes", "is required")
	}
	for i, mode := range spec.AccessModes {
		if !slices.Contains(offered, mode) {
			return volume.Invalid(fmt.Sprintf("spec.accessModes[%d]", i), "is %q, which %s does not do; it can be %v", mode, on.name(), offered)
		}
	}
	size := spec.Resources.Requests[v1.ResourceStorage]
	if size.Sign() <= 0 {
		return volume.Invalid("spec.resources.requests.storage", "is required, and must be more than 0")
	}
	return nil
}

// ClassOf returns the storage class that a claim names, "" if none.
func ClassOf(claim *v1.PersistentVolumeClaim) string {
	if name, ok := claim.Annotations[v1.BetaStorageClassAnnotation]; ok {
		return name
	}
	if claim.Spec.StorageClassName != nil {
		return *claim.Spec.StorageClassName
	}
	return ""
}

func (m Medium) noDevice() string {
	if m == Disk {
		return "a directory is no device"
	}
	return "NFS has file systems only"
}

func (m Medium) name() string {
	if m == Disk {
		return "a directory of one node"
	}
	return "NFS"
}
