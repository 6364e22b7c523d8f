package payload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/validation"
)

// keyed adds the files of a config map or secret: all keys, or those that
// items name. Immutable objects are read like any other; that they need not be
// watched is for the caller to know.
func (c *collector) keyed(ctx context.Context, at string, k keyed) error {
	ref := volume.NewObjectRef(k.kind, c.pod.Namespace, k.name)
	data, err := c.read(ctx, ref)
	if errors.Is(err, volume.ErrNotFound) && k.optional {
		return nil
	}
	if err != nil {
		return lookUpError(at, ref, err)
	}
	if len(k.items) == 0 {
		return c.allKeys(at, ref, data)
	}
	var errs []error
	for i, item := range k.items {
		itemField := fmt.Sprintf("%s.items[%d]", at, i)
		switch value, ok := data[item.Key]; {
		case ok:
			errs = append(errs, c.add(itemField, item.Path, value, item.Mode, kubeapi.User(&item)))
		case !k.optional:
			errs = append(errs, &MissingError{Field: itemField, Ref: ref, Key: item.Key})
		}
	}
	return errors.Join(errs...)
}

func (c *collector) allKeys(at string, ref volume.ObjectRef, data map[string][]byte) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(data)) {
		// The API would not have taken such a key, but not every object has
		// been through the API.
		if faults := apivalidation.IsConfigMapKey(key); len(faults) > 0 {
			errs = append(errs, fmt.Errorf("%s: %s: key %q cannot be a file's name: %s", at, ref, key, strings.Join(faults, "; ")))
			continue
		}
		errs = append(errs, c.add(at, key, data[key], nil, nil))
	}
	return errors.Join(errs...)
}

// read returns an object's data by key. The caller must not change the bytes.
func (c *collector) read(ctx context.Context, ref volume.ObjectRef) (map[string][]byte, error) {
	if ref.Kind == "Secret" {
		role, err := volume.Role[volume.SecretGetter](c.host)
		if err != nil {
			return nil, err
		}
		secret, err := role.GetSecret(ctx, ref.Namespace, ref.Name)
		if err != nil {
			return nil, err
		}
		return secret.Data, nil
	}
	role, err := volume.Role[volume.ConfigMapGetter](c.host)
	if err != nil {
		return nil, err
	}
	configMap, err := role.GetConfigMap(ctx, ref.Namespace, ref.Name)
	if err != nil {
		return nil, err
	}
	data := make(map[string][]byte, len(configMap.Data)+len(configMap.BinaryData))
	for key, value := range configMap.Data {
		data[key] = []byte(value)
	}
	maps.Copy(data, configMap.BinaryData)
	return data, nil
}

// Projection is what a volume shows.
type Projection struct {
	// Volume is the volume's name in the pod.
	Volume string
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

// ConfigMap translates a configMap volume; false means that it is of another kind. It does not
// check anything.
func ConfigMap(v *v1.Volume) (Projection, bool) {
	s := v.ConfigMap
	if s == nil {
		return Projection{}, false
	}
	const field = "configMap"
	return Projection{
		Volume:      v.Name,
		Field:       field,
		DefaultMode: s.DefaultMode,
		DefaultUser: kubeapi.DefaultUser(s),
		Sources: []Source{{Field: field, VolumeProjection: v1.VolumeProjection{
			ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: s.LocalObjectReference, Items: s.Items, Optional: s.Optional},
		}}},
	}, true
}

// Secret translates a secret volume; false means that it is of another kind. It does not
// check anything.
func Secret(v *v1.Volume) (Projection, bool) {
	s := v.Secret
	if s == nil {
		return Projection{}, false
	}
	const field = "secret"
	return Projection{
		Volume:      v.Name,
		Field:       field,
		DefaultMode: s.DefaultMode,
		DefaultUser: kubeapi.DefaultUser(s),
		Sources: []Source{{Field: field, VolumeProjection: v1.VolumeProjection{
			Secret: &v1.SecretProjection{
				LocalObjectReference: v1.LocalObjectReference{Name: s.SecretName}, Items: s.Items, Optional: s.Optional,
			},
		}}},
	}, true
}

// DownwardAPI translates a downwardAPI volume; false means that it is of another kind. It does not
// check anything.
func DownwardAPI(v *v1.Volume) (Projection, bool) {
	s := v.DownwardAPI
	if s == nil {
		return Projection{}, false
	}
	const field = "downwardAPI"
	return Projection{
		Volume:      v.Name,
		Field:       field,
		DefaultMode: s.DefaultMode,
		DefaultUser: kubeapi.DefaultUser(s),
		Sources: []Source{{Field: field, VolumeProjection: v1.VolumeProjection{
			DownwardAPI: &v1.DownwardAPIProjection{Items: s.Items},
		}}},
	}, true
}

// Projected translates a projected volume; false means that it is of another kind. It does not
// check anything.
func Projected(v *v1.Volume) (Projection, bool) {
	s := v.Projected
	if s == nil {
		return Projection{}, false
	}
	const field = "projected"
	p := Projection{Volume: v.Name, Field: field, DefaultMode: s.DefaultMode, DefaultUser: kubeapi.DefaultUser(s)}
	for i := range s.Sources {
		p.Sources = append(p.Sources, NewSource(fmt.Sprintf("%s.sources[%d]", field, i), s.Sources[i]))
	}
	return p, true
}

// trustBundle adds a file with the PEM certificates of one bundle, or of all
// that a signer's selector selects. Where that is nothing and the source is
// optional, the file is empty, as with the kubelet.
func (c *collector) trustBundle(ctx context.Context, at string, b *v1.ClusterTrustBundleProjection) error {
	ref := bundleRef(b)
	pem, err := c.readBundle(ctx, b)
	if err == nil && pem == "" {
		err = &volume.ObjectNotFoundError{Ref: ref}
	}
	switch {
	case err == nil:
	case errors.Is(err, volume.ErrNotFound) && isTrue(b.Optional):
		pem = ""
	case errors.Is(err, volume.ErrNotFound) && b.SignerName != nil:
		return fmt.Errorf("%s: no ClusterTrustBundle of signer %q is selected (a missing labelSelector selects none, an empty one all); "+
			"create one, or set optional: true: %w", at, *b.SignerName, err)
	default:
		return lookUpError(at, ref, err)
	}
	return c.addOwned(at, b.Path, []byte(pem), kubeapi.User(b))
}

func (c *collector) readBundle(ctx context.Context, b *v1.ClusterTrustBundleProjection) (string, error) {
	role, err := volume.Role[volume.TrustBundleGetter](c.host)
	if err != nil {
		return "", err
	}
	if b.Name != nil {
		return role.GetTrustBundle(ctx, *b.Name)
	}
	return role.GetTrustBundlesBySigner(ctx, *b.SignerName, b.LabelSelector)
}

// bundleRef names the bundle; a source that selects by signer has a reference
// without name.
func bundleRef(b *v1.ClusterTrustBundleProjection) volume.ObjectRef {
	name := ""
	if b.Name != nil {
		name = *b.Name
	}
	return volume.NewObjectRef("ClusterTrustBundle", "", name)
}
