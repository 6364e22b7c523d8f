package sharedirs

import (
	"cmp"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume"
)

// Parameters of a storage class that every provisioner of directories knows, as
// manifests spell them.
const (
	ParamSubDir   = "subDir"
	ParamOnDelete = "onDelete"
)

// Annotations of a PersistentVolume that was provisioned.
const (
	provisionedBy = "pv.kubernetes.io/provisioned-by"
	// OnDeleteAnnotation says what becomes of the directory.
	OnDeleteAnnotation = "provisioned.podvol.io/on-delete"
)

// Class is the part of a storage class that every provisioner of directories knows.
type Class struct {
	subDir   string // a template
	Mode     uint32 // of the volume's directory
	OnDelete OnDelete
}

// Parameters returns the parameters of a storage class by their names in lower case.
// The API does not care about their case. It refuses names that are not known. Known
// has at least two, as manifests spell them.
func Parameters(parameters map[string]string, known ...string) (map[string]string, error) {
	given := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		low := strings.ToLower(name)
		if !slices.ContainsFunc(known, func(k string) bool { return strings.ToLower(k) == low }) {
			last := len(known) - 1
			return nil, volume.Invalid("parameters."+name, "is not known; there are %s and %s", strings.Join(known[:last], ", "), known[last])
		}
		if _, twice := given[low]; twice {
			return nil, volume.Invalid("parameters."+name, "is given twice")
		}
		given[low] = parameters[name]
	}
	return given, nil
}

// ParseClass reads the common parameters of those that [Parameters] returned.
// modeName is the name of the parameter with the mode. mode and onDelete are the
// configured defaults; an empty onDelete is [Delete].
func ParseClass(given map[string]string, modeName string, mode uint32, onDelete string) (Class, error) {
	class := Class{subDir: cmp.Or(given[strings.ToLower(ParamSubDir)], "${"+VolumeName+"}"), Mode: mode}
	if s := given[strings.ToLower(modeName)]; s != "" {
		octal, err := strconv.ParseUint(s, 8, 32)
		if err != nil {
			return Class{}, volume.Invalid("parameters."+modeName, "is %q; it must be an octal number such as 0770", s)
		}
		class.Mode = uint32(octal)
	}
	if err := CheckMode("parameters."+modeName, class.Mode); err != nil {
		return Class{}, err
	}
	var err error
	class.OnDelete, err = ParseOnDelete("parameters."+ParamOnDelete, cmp.Or(given[strings.ToLower(ParamOnDelete)], onDelete))
	return class, err
}

// CheckMode refuses a mode of a volume's directory that is not safe, or with which
// no process could delete the directory.
func CheckMode(field string, mode uint32) error {
	const owner, allowed = 0o700, uint32(fs.ModePerm) | 0o3000
	if mode&^allowed != 0 || mode&owner != owner {
		return volume.Invalid(field, "is %#o; it must be between 0700 and 3777, with all permissions for the owner, who could not delete the directory else", mode)
	}
	return nil
}

// DirFor returns the path for a claim, below the base. It is one that [CheckPath]
// accepts.
func (c *Class) DirFor(options volume.VolumeOptions) (string, error) {
	dir, err := Expand(c.subDir, map[string]string{
		ClaimName:      options.PVC.Name,
		ClaimNamespace: options.PVC.Namespace,
		VolumeName:     options.PVName,
	})
	if err == nil {
		err = CheckPath(dir)
	}
	if err != nil {
		return "", volume.Invalid("parameters."+ParamSubDir, "%v", err)
	}
	return dir, nil
}

// ProvisionedAt returns the base at which a plugin has provisioned the volume: the
// value of an annotation. It refuses volumes of others, and volumes whose data is
// kept.
func ProvisionedAt(spec *volume.Spec, plugin, annotation string) (string, error) {
	pv := spec.PersistentVolume
	if pv == nil {
		return "", volume.Invalid("volume", "is a pod's own; only PersistentVolumes are deleted")
	}
	if policy := pv.Spec.PersistentVolumeReclaimPolicy; policy != v1.PersistentVolumeReclaimDelete {
		return "", volume.Invalid("persistentVolumeReclaimPolicy", "is %q, not %q, so the data is kept", policy, v1.PersistentVolumeReclaimDelete)
	}
	base, ours := pv.Annotations[annotation]
	if !ours || !IsOf(pv, plugin) {
		return "", volume.Invalid("metadata.annotations", "say that the volume was not provisioned by podvol (%s, %s); "+
			"its data is kept. Delete it by hand, and use persistentVolumeReclaimPolicy: Retain for volumes of your own", provisionedBy, annotation)
	}
	return base, nil
}

// IsOf reports whether a plugin has provisioned the volume, as its annotation says.
func IsOf(pv *v1.PersistentVolume, plugin string) bool {
	return pv.Annotations[provisionedBy] == plugin
}

// NewPersistentVolume returns the volume of a claim as Kubernetes' controller stores
// it. A plugin has provisioned it at a base, the value of the annotation. The caller
// adds the source.
func NewPersistentVolume(options volume.VolumeOptions, plugin, annotation, base string, onDelete OnDelete) *v1.PersistentVolume {
	claim := options.PVC
	pv := &v1.PersistentVolume{}
	pv.Name = options.PVName
	pv.Annotations = map[string]string{provisionedBy: plugin, annotation: base, OnDeleteAnnotation: string(onDelete)}
	pv.Spec = v1.PersistentVolumeSpec{
		Capacity:                      v1.ResourceList{v1.ResourceStorage: claim.Spec.Resources.Requests[v1.ResourceStorage].DeepCopy()},
		AccessModes:                   slices.Clone(claim.Spec.AccessModes),
		VolumeMode:                    new(v1.PersistentVolumeFilesystem),
		StorageClassName:              ClassOf(claim),
		PersistentVolumeReclaimPolicy: cmp.Or(options.PersistentVolumeReclaimPolicy, v1.PersistentVolumeReclaimDelete),
		ClaimRef: &v1.ObjectReference{
			Kind: "PersistentVolumeClaim", APIVersion: "v1",
			Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
		},
	}
	return pv
}

// OwnerOf returns the owner of a provisioned volume's directory.
func OwnerOf(pv *v1.PersistentVolume) (Owner, error) {
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
		return Owner{}, volume.Invalid("spec.claimRef", "does not say which claim the volume was made for, so nothing is deleted")
	}
	return Owner{Volume: pv.Name, ClaimUID: pv.Spec.ClaimRef.UID}, nil
}

// OnDeleteOf returns what becomes of a provisioned volume's directory.
func OnDeleteOf(pv *v1.PersistentVolume) (OnDelete, error) {
	return ParseOnDelete("metadata.annotations."+OnDeleteAnnotation, pv.Annotations[OnDeleteAnnotation])
}
