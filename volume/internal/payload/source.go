package payload

import (
	"io/fs"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/volume/validation"
)

// Projection is what a volume shows.
type Projection struct {
	// Field is the volume's source as a manifest spells it, such as
	// "configMap"; errors begin with it.
	Field string
	// DefaultMode is the mode of files without one; nil means 0644.
	DefaultMode *int32
	// DefaultUser owns the files without a user of their own; nil means
	// no user in particular.
	DefaultUser *int64
	// Sources are projected in this order, at least one. Of two files that come to
	// the same path the later one is shown.
	Sources []Source
}

// Source is one source, with the path of its field for errors.
type Source struct {
	Field string
	v1.VolumeProjection
}

// NewSource returns the source at this element of a list of sources. Its field
// goes on to the kind of source, where that is clear.
func NewSource(field string, p v1.VolumeProjection) Source {
	s := Source{Field: field, VolumeProjection: p}
	if types := validation.ProjectionTypes(&p); len(types) == 1 {
		s.Field += "." + types[0]
	}
	return s
}

const defaultMode = v1.ConfigMapVolumeSourceDefaultMode

func (p *Projection) mode() fs.FileMode { return modeOr(p.DefaultMode, fs.FileMode(defaultMode)) }

func modeOr(mode *int32, otherwise fs.FileMode) fs.FileMode {
	if mode == nil {
		return otherwise
	}
	return fs.FileMode(*mode)
}

// keyed is a source that is an object with keys: a config map or a secret.
type keyed struct {
	kind, name string
	items      []v1.KeyToPath
	optional   bool
}

// keyed returns the source as an object with keys, if it is one.
func (s *Source) keyed() (keyed, bool) {
	switch {
	case s.ConfigMap != nil:
		return keyed{"ConfigMap", s.ConfigMap.Name, s.ConfigMap.Items, isTrue(s.ConfigMap.Optional)}, true
	case s.Secret != nil:
		return keyed{"Secret", s.Secret.Name, s.Secret.Items, isTrue(s.Secret.Optional)}, true
	}
	return keyed{}, false
}

func isTrue(b *bool) bool { return b != nil && *b }
