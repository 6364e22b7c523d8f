package sharedirs

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

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

// OnDelete says what becomes of a directory when its volume is deleted.
type OnDelete string

// The values are as in csi-driver-nfs's parameter onDelete.
const (
	// Delete deletes the directory with all that is in it.
	Delete OnDelete = "delete"
	// Archive renames it to "archived-<name>", beside where it was. It is
	// no volume's from then on.
	Archive OnDelete = "archive"
	// Retain leaves it where it is. It is no volume's from then on, so that no
	// later volume gets the path until it was moved away.
	Retain OnDelete = "retain"
)

// careful lists them, the one that keeps most last.
func careful() []OnDelete { return []OnDelete{Delete, Archive, Retain} }

// ParseOnDelete reads the value of a field, in whatever case. Empty is [Delete].
func ParseOnDelete(field, s string) (OnDelete, error) {
	o := OnDelete(strings.ToLower(cmp.Or(s, string(Delete))))
	if !o.valid() {
		return "", volume.Invalid(field, "is %q; it can be delete, archive or retain", o)
	}
	return o, nil
}

func (o OnDelete) valid() bool { return slices.Contains(careful(), o) }

// stricter returns the one of the two that keeps more.
func (o OnDelete) stricter(other OnDelete) OnDelete {
	if slices.Index(careful(), other) > slices.Index(careful(), o) {
		return other
	}
	return o
}

// Names of the variables, those that csi-driver-nfs knows.
const (
	ClaimName      = "pvc.metadata.name"
	ClaimNamespace = "pvc.metadata.namespace"
	VolumeName     = "pv.metadata.name"
)

const (
	// maxElement is NAME_MAX, maxPath well below PATH_MAX, so that the share's
	// own path has room before it.
	maxElement = 255
	maxPath    = 2048
)

// pathError says why a template, or a path, is refused. Nothing was touched.
type pathError struct {
	// template is the template, or the path where there is none; reason says why it
	// is refused and how to mend it.
	template, reason string
}

func (e *pathError) Error() string { return fmt.Sprintf("%q is refused: %s", e.template, e.reason) }

// Expand makes the path of a directory below a base from a storage class's
// template, such as "${pvc.metadata.namespace}/${pvc.metadata.name}": each ${name}
// is replaced by the variable's value. The result is a path that [CheckRelative]
// accepts. Refused are:
//
//   - a variable that is not in values, or is empty,
//   - a value that is more than a part of one path element,
//   - a variable that is not ended; a "$" before anything but "{" is itself.
//
// Users choose the names of their claims. In CVE-2026-3864 a path with ".." led a
// provisioner's deletion out of its share; here no value can add an element to
// the path, and no path can leave its base.
func Expand(template string, values map[string]string) (string, error) {
	refuse := func(format string, args ...any) (string, error) {
		return "", &pathError{template: template, reason: fmt.Sprintf(format, args...)}
	}
	var path strings.Builder
	rest := template
	for {
		literal, after, more := strings.Cut(rest, "${")
		path.WriteString(literal)
		if !more {
			break
		}
		name, after, ended := strings.Cut(after, "}")
		if !ended {
			return refuse(`"${" has no "}" after it`)
		}
		value, known := values[name]
		if !known {
			return refuse("${%s} is no variable; there are %s", name, names(values))
		}
		if reason := checkValue(value); reason != "" {
			return refuse("${%s} %s", name, reason)
		}
		path.WriteString(value)
		rest = after
	}
	if err := CheckRelative(path.String()); err != nil {
		if e, ok := errors.AsType[*pathError](err); ok && e.template != template {
			return refuse("it makes %q, and %s", e.template, e.reason)
		}
		return "", err
	}
	return path.String(), nil
}

func names(values map[string]string) string {
	var all []string
	for name := range values {
		all = append(all, "${"+name+"}")
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// checkValue says why a value cannot stand in a path.
func checkValue(value string) string {
	switch {
	case value == "":
		return "is empty here"
	case value == "." || value == "..":
		return fmt.Sprintf("is %q here, which names another directory", value)
	case strings.Contains(value, "/"):
		return fmt.Sprintf("is %q here; a name must not contain a slash", value)
	}
	return ""
}

// CheckRelative refuses all but the one spelling of a path below a directory:
// empty or absolute paths, empty, "." and ".." elements, elements of more than
// 255 bytes, paths of more than 2048, control characters, invalid UTF-8, and
// backslashes, which separate elements for some servers.
func CheckRelative(path string) error {
	refuse := func(format string, args ...any) error {
		return &pathError{template: path, reason: fmt.Sprintf(format, args...)}
	}
	switch {
	case path == "":
		return refuse("the path is empty; it must name a directory")
	case path[0] == '/':
		return refuse("the path must be relative")
	case len(path) > maxPath:
		return refuse("the path has %d bytes, at most %d are allowed", len(path), maxPath)
	case !utf8.ValidString(path):
		return refuse("the path must be UTF-8")
	case strings.ContainsFunc(path, func(r rune) bool { return unicode.IsControl(r) || r == '\\' }):
		return refuse("the path must have neither control characters nor backslashes")
	}
	for element := range strings.SplitSeq(path, "/") {
		switch {
		case element == "":
			return refuse("the path has an empty element: no slash at its end, no two in a row")
		case element == "." || element == "..":
			return refuse("the path must not have the element %q", element)
		case len(element) > maxElement:
			return refuse("an element has %d bytes, at most %d are allowed", len(element), maxElement)
		}
	}
	return nil
}

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
