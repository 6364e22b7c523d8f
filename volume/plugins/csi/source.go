package csi

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
)

const (
	maxDriverName = 63
	// maxHandle bounds what goes into records and names of volumes.
	maxHandle = 4095
	// inlinePrefix begins the handles of inline volumes.
	inlinePrefix = "csi-"
)

// source is what a persistent and an inline source have in common.
type source struct {
	driver, handle, fsType string
	attributes             map[string]string
	inline, readOnly       bool // readOnly: an inline volume's own
	// The secrets; nil: none. That of an inline volume is in its pod's namespace.
	stage, publish, expand *v1.SecretReference
}

// isNothing reports whether the source is what [Plugin.ConstructVolumeSpec] makes of an
// empty directory.
func (s *source) isNothing() bool { return s.inline && s.driver == "" }

func persistentSource(s *v1.CSIPersistentVolumeSource) *source {
	if s == nil {
		return nil
	}
	return &source{
		driver: s.Driver, handle: s.VolumeHandle, fsType: s.FSType, attributes: s.VolumeAttributes,
		stage: s.NodeStageSecretRef, publish: s.NodePublishSecretRef, expand: s.NodeExpandSecretRef,
	}
}

func inlineSource(s *v1.CSIVolumeSource) *source {
	if s == nil {
		return nil
	}
	inline := &source{driver: s.Driver, attributes: s.VolumeAttributes, inline: true, readOnly: s.ReadOnly != nil && *s.ReadOnly}
	if s.FSType != nil {
		inline.fsType = *s.FSType
	}
	if s.NodePublishSecretRef != nil {
		inline.publish = &v1.SecretReference{Name: s.NodePublishSecretRef.Name}
	}
	return inline
}

// inlineHandle is the kubelet's id of an inline volume.
func inlineHandle(podUID types.UID, volumeName string) string {
	sum := sha256.Sum256([]byte(string(podUID) + volumeName))
	return inlinePrefix + hex.EncodeToString(sum[:])
}

// checkedSource refuses names that could lead elsewhere, and what no driver can be sent.
func (p *Plugin) checkedSource(spec *volume.Spec) (*source, error) {
	s, err := p.Source(spec)
	if err != nil {
		return nil, err
	}
	if err := checkDriverName("csi.driver", s.driver); err != nil {
		return nil, err
	}
	if s.inline {
		return s, nil
	}
	return s, checkHandle(s.handle)
}

// checkDriverName refuses what is no name of a CSI driver: the specification's rule.
func checkDriverName(field, name string) error {
	valid := regexp.MustCompile(`^[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?$`)
	if len(name) > maxDriverName || !valid.MatchString(name) || strings.Contains(name, "..") {
		return volume.Invalid(field, "is no name of a driver, which has at most %d letters, digits, dots and dashes: %.80q", maxDriverName, name)
	}
	return nil
}

func checkHandle(handle string) error {
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
