package volume

import (
	"fmt"
	"reflect"
	"strings"
)

// UnsupportedError says that no registered plugin knows a volume's type, or that its plugin
// must not mount such a volume on this node. It says why, and what to use instead. A plugin
// of the user's own that supports the type takes precedence.
type UnsupportedError struct {
	// Volume is the volume's name; may be empty.
	Volume string
	// Type is the source's name in a manifest, such as "gitRepo".
	Type string
	// Reason says why. Replacement says what to use instead.
	Reason, Replacement string
}

func (e *UnsupportedError) Error() string {
	text := fmt.Sprintf("volume type %s is not supported: %s; %s", e.Type, e.Reason, e.Replacement)
	if e.Volume != "" {
		return fmt.Sprintf("volume %q: %s", e.Volume, text)
	}
	return text
}

// SourceTypes returns the names of the spec's sources as manifests spell them.
// There is one for a valid spec, and none or several for an invalid one.
// SourceTypes knows every source of the API version that it was compiled with.
func SourceTypes(spec *Spec) []string {
	switch {
	case spec == nil:
		return nil
	case spec.Volume != nil:
		return setPointers(reflect.ValueOf(spec.Volume.VolumeSource))
	case spec.PersistentVolume != nil:
		return setPointers(reflect.ValueOf(spec.PersistentVolume.Spec.PersistentVolumeSource))
	}
	return nil
}

func setPointers(source reflect.Value) (names []string) {
	for i := range source.NumField() {
		if source.Field(i).Kind() != reflect.Pointer || source.Field(i).IsNil() {
			continue
		}
		name, _, _ := strings.Cut(source.Type().Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

// unsupported returns the error for a spec that no plugin supports.
func unsupported(spec *Spec) error {
	types := SourceTypes(spec)
	if len(types) != 1 {
		return wrongSources(spec, types)
	}
	return NewUnsupportedError(spec.Name(), types[0])
}

func wrongSources(spec *Spec, types []string) *InvalidSpecError {
	has := "none"
	if len(types) > 0 {
		has = fmt.Sprintf("%d: %s", len(types), strings.Join(types, ", "))
	}
	return &InvalidSpecError{Field: fmt.Sprintf("volume %q", spec.Name()), Reason: "must have exactly one source, has " + has}
}

// Phrases that the table below repeats.
const (
	noCode         = "Kubernetes itself has removed its code"
	movedToCSI     = "Kubernetes reaches it only through its CSI driver"
	useCSI         = "install that driver, and give the node a plugin for csi and the Translator of volume/csitranslation (podvol --csi-driver NAME=SOCKET)"
	useCSIOrOwn    = "use a CSI driver for that storage, or register a plugin of your own"
	notByThisBuild = "none of the registered plugins is for it"
)

// NewUnsupportedError returns the error for a volume type without plugin. It says
// why the type is not supported, and what to use instead. volumeName may be
// empty.
func NewUnsupportedError(volumeName, sourceType string) *UnsupportedError {
	reason, replacement := unsupportedType(sourceType)
	return &UnsupportedError{Volume: volumeName, Type: sourceType, Reason: reason, Replacement: replacement}
}

func unsupportedType(sourceType string) (reason, replacement string) {
	switch sourceType {
	case "awsElasticBlockStore", "azureDisk", "azureFile", "cinder", "gcePersistentDisk", "portworxVolume", "vsphereVolume":
		return movedToCSI, useCSI
	case "storageos", "flocker", "photonPersistentDisk", "quobyte", "scaleIO":
		return noCode, useCSIOrOwn
	case "gitRepo":
		return "cloning as root runs hooks of a stranger's repository (CVE-2024-10220, CVE-2025-1767), so Kubernetes has disabled it",
			"clone in an init container into an emptyDir"
	case "csi":
		return "no CSI plugin is registered", "add csi.New of volume/plugins/csi to the plugins (podvol --csi-driver NAME=SOCKET), or use a type that is mounted without a driver"
	case "image":
		return "no image plugin is registered", "add image.New of volume/plugins/image to the plugins, as the command podvol does"
	case "ephemeral":
		return "its claim, which a controller makes, is no storage by itself", "resolve it to its PersistentVolume first, as the volume manager does"
	case "persistentVolumeClaim":
		return "a claim is no storage by itself", "resolve it to its PersistentVolume first, as the volume manager does"
	case "fc":
		return "disks of Fibre Channel are not attached by this version", useCSIOrOwn
	}
	return notByThisBuild, "register its plugin, or one of your own"
}
