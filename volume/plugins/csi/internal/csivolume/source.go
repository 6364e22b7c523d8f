// Package csivolume has the facts about a CSI driver's volume that need no call of the driver:
// its source in a spec ([Source]), and its places on the node's disk, which are the kubelet's
// ([Disk], [Data]).
package csivolume

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/internal/pluginbase"
)

// PluginName is the plugin's name.
const PluginName = "kubernetes.io/csi"

const (
	maxDriverName = 63
	// maxHandle bounds records and names of volumes, which contain the handle.
	maxHandle = 4095
	// InlinePrefix begins the handles of inline volumes.
	InlinePrefix = "csi-"
)

// Source has the fields of a persistent or an inline source. It is never changed.
type Source struct {
	Driver, Handle, FSType string
	Attributes             map[string]string
	Inline, ReadOnly       bool // ReadOnly: an inline volume's own
	// The secrets; nil: none. That of an inline volume is in its pod's namespace.
	Stage, Publish, NodeExpand, ControllerPublish, ControllerExpand *v1.SecretReference
}

// IsNothing reports whether the source comes from a directory without data: see [Data.Spec].
func (s *Source) IsNothing() bool { return s.Inline && s.Driver == "" }

// Kind is the kind of volumes of all drivers.
func Kind() pluginbase.Kind[Source] {
	return pluginbase.Kind[Source]{
		Name: PluginName, Field: "csi",
		Inline:     func(s *v1.VolumeSource) *Source { return inlineSource(s.CSI) },
		Persistent: func(s *v1.PersistentVolumeSource) *Source { return persistentSource(s.CSI) },
	}
}

func persistentSource(s *v1.CSIPersistentVolumeSource) *Source {
	if s == nil {
		return nil
	}
	return &Source{
		Driver: s.Driver, Handle: s.VolumeHandle, FSType: s.FSType, Attributes: s.VolumeAttributes,
		Stage: s.NodeStageSecretRef, Publish: s.NodePublishSecretRef, NodeExpand: s.NodeExpandSecretRef,
		ControllerPublish: s.ControllerPublishSecretRef, ControllerExpand: s.ControllerExpandSecretRef,
	}
}

func inlineSource(s *v1.CSIVolumeSource) *Source {
	if s == nil {
		return nil
	}
	inline := &Source{Driver: s.Driver, Attributes: s.VolumeAttributes, Inline: true, ReadOnly: s.ReadOnly != nil && *s.ReadOnly}
	if s.FSType != nil {
		inline.FSType = *s.FSType
	}
	if s.NodePublishSecretRef != nil {
		inline.Publish = &v1.SecretReference{Name: s.NodePublishSecretRef.Name}
	}
	return inline
}

// AccessModes are all: which of them a volume has is for its driver to say.
func AccessModes() []v1.PersistentVolumeAccessMode {
	return []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod}
}

// InlineHandle is the kubelet's id of an inline volume.
func InlineHandle(podUID types.UID, volumeName string) string {
	sum := sha256.Sum256([]byte(string(podUID) + volumeName))
	return InlinePrefix + hex.EncodeToString(sum[:])
}

// Checked returns the source that a kind finds in a spec. It refuses driver names
// that could lead out of their directory, and handles that no driver can be sent.
func Checked(kind *pluginbase.Kind[Source], spec *volume.Spec) (*Source, error) {
	s, err := kind.Source(spec)
	if err != nil {
		return nil, err
	}
	if err := CheckDriverName("csi.driver", s.Driver); err != nil {
		return nil, err
	}
	if s.Inline {
		return s, nil
	}
	return s, CheckHandle(s.Handle)
}

// UniqueName is the volume's name in the node's state, as the kubelet has it. pod is needed
// for an inline volume, which has a handle only with its pod.
func (s *Source) UniqueName(pod types.UID, volumeName string) string {
	handle := s.Handle
	if s.Inline {
		handle = InlineHandle(pod, volumeName)
	}
	return s.Driver + "^" + handle
}

// Describe returns the driver's name and the handle.
func (s *Source) Describe() string {
	if s.Inline {
		return s.Driver
	}
	return s.Driver + ":" + s.Handle
}

// CheckDriverName refuses a name that the CSI specification does not allow for a driver.
func CheckDriverName(field, name string) error {
	valid := regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?$`)
	if len(name) > maxDriverName || !valid.MatchString(name) || strings.Contains(name, "..") {
		return volume.Invalid(field, "%.80q is no name of a driver, which has at most %d letters, digits, dots and dashes", name, maxDriverName)
	}
	return nil
}

// CheckHandle refuses a handle that cannot be sent to a driver, or kept in a record.
func CheckHandle(handle string) error {
	const field = "csi.volumeHandle"
	switch {
	case handle == "":
		return volume.Invalid(field, "must not be empty")
	case len(handle) > maxHandle:
		return volume.Invalid(field, "has %d bytes, at most %d are allowed", len(handle), maxHandle)
	case !utf8.ValidString(handle) || strings.ContainsFunc(handle, unicode.IsControl):
		return volume.Invalid(field, "must be UTF-8 without control characters: %.80q", handle)
	}
	return nil
}

// Failed names the operation and the volume in an error; nil stays nil.
func Failed(op, volumeName string, err error) error {
	if err == nil {
		return nil
	}
	return &volume.Error{Op: op, Plugin: PluginName, Volume: volumeName, Err: err}
}
