package projection

import (
	"fmt"
	"math"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/podvol/podvol/util/atomicdir"
	"github.com/podvol/podvol/volume"
)

// Expiration of tokens, in seconds, as the API limits it.
const (
	defaultExpiration int64 = 3600
	minExpiration     int64 = 600
	maxExpiration     int64 = 1 << 32
)

// validate refuses everything that can be seen to be wrong without looking at
// any object but the pod. The error is a *[volume.InvalidSpecError] or
// *[volume.UnsupportedError], marked with [volume.NothingDone].
func (p *Projection) validate(pod *v1.Pod) error {
	v := validator{pod: pod}
	if err := checkMode(p.Field+".defaultMode", p.DefaultMode); err != nil {
		return err
	}
	if len(p.Sources) == 0 {
		return volume.Invalid(p.Field+".sources", "must not be empty; name at least one source")
	}
	if err := checkUser(p.Field+".defaultUser", p.DefaultUser); err != nil {
		return err
	}
	for i := range p.Sources {
		if err := v.source(&p.Sources[i]); err != nil {
			return err
		}
	}
	return nil
}

type validator struct {
	pod *v1.Pod
	// paths are those written down so far.
	paths pathSet
}

func (v *validator) source(s *Source) error {
	if kinds := s.kinds(); len(kinds) != 1 {
		return volume.Invalid(s.Field, "must have exactly one kind of source, has %d: %s", len(kinds), orNone(kinds))
	}
	if k, ok := s.keyed(); ok {
		return v.keyed(s.Field, k)
	}
	switch {
	case s.DownwardAPI != nil:
		return v.downwardAPI(s.Field, s.DownwardAPI.Items)
	case s.ServiceAccountToken != nil:
		return v.token(s.Field, s.ServiceAccountToken)
	case s.ClusterTrustBundle != nil:
		return v.trustBundle(s.Field, s.ClusterTrustBundle)
	}
	return volume.NothingDone(fmt.Errorf("%s: %w", s.Field, volume.NewUnsupportedError("", "podCertificate")))
}

func orNone(list []string) string {
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func (v *validator) keyed(field string, k keyed) error {
	nameField := field + ".name"
	if field == "secret" { // the one source that spells it differently
		nameField = "secret.secretName"
	}
	if err := volume.CheckPathSegment(nameField, k.name); err != nil {
		return err
	}
	for i, item := range k.items {
		itemField := fmt.Sprintf("%s.items[%d]", field, i)
		if item.Key == "" {
			return volume.Invalid(itemField+".key", "must not be empty")
		}
		if err := v.file(itemField, item.Path, item.Mode, item.User); err != nil {
			return err
		}
	}
	return nil
}

func (v *validator) downwardAPI(field string, items []v1.DownwardAPIVolumeFile) error {
	for i := range items {
		item, itemField := &items[i], fmt.Sprintf("%s.items[%d]", field, i)
		if err := v.file(itemField, item.Path, item.Mode, item.User); err != nil {
			return err
		}
		if (item.FieldRef == nil) == (item.ResourceFieldRef == nil) {
			return volume.Invalid(itemField, "must have exactly one of fieldRef and resourceFieldRef")
		}
		if err := v.reference(itemField, item); err != nil {
			return err
		}
	}
	return nil
}

func (v *validator) reference(field string, item *v1.DownwardAPIVolumeFile) error {
	if item.FieldRef != nil {
		_, err := parseField(field+".fieldRef", item.FieldRef)
		return err
	}
	_, err := parseResource(field+".resourceFieldRef", item.ResourceFieldRef, v.pod)
	return err
}

func (v *validator) token(field string, t *v1.ServiceAccountTokenProjection) error {
	if e := t.ExpirationSeconds; e != nil && (*e < minExpiration || *e > maxExpiration) {
		return volume.Invalid(field+".expirationSeconds", "must be between %d and %d, is %d", minExpiration, maxExpiration, *e)
	}
	return v.file(field, t.Path, nil, t.User)
}

func (v *validator) trustBundle(field string, b *v1.ClusterTrustBundleProjection) error {
	if err := v.file(field, b.Path, nil, b.User); err != nil {
		return err
	}
	switch {
	case (b.Name == nil) == (b.SignerName == nil):
		return volume.Invalid(field, "must have exactly one of name and signerName")
	case b.Name != nil && b.LabelSelector != nil:
		return volume.Invalid(field+".labelSelector", "selects among the bundles of a signerName; it cannot be used with name")
	case b.Name != nil:
		return volume.CheckPathSegment(field+".name", *b.Name)
	case *b.SignerName == "":
		return volume.Invalid(field+".signerName", "must not be empty")
	}
	if _, err := metav1.LabelSelectorAsSelector(b.LabelSelector); err != nil {
		return volume.Invalid(field+".labelSelector", "%v", err)
	}
	return nil
}

// file checks what was written down about a file.
func (v *validator) file(field, given string, mode *int32, user *int64) error {
	if err := atomicdir.CheckPath(given); err != nil {
		return volume.Invalid(field+".path", "%v", err)
	}
	if err := checkMode(field+".mode", mode); err != nil {
		return err
	}
	if err := checkUser(field+".user", user); err != nil {
		return err
	}
	clean := path.Clean(given)
	if other, taken := v.paths.origins[clean]; taken {
		return volume.Invalid(field+".path", "%q is the path of %s too; give each file a path of its own", given, other)
	}
	if other, ok := v.paths.conflict(clean); ok {
		return volume.Invalid(field+".path", "%q and %q of %s do not go together: one would be a file and the directory of the other",
			given, other, v.paths.origins[other])
	}
	v.paths.add(clean, field)
	return nil
}

func checkUser(field string, user *int64) error {
	if user != nil && (*user < 0 || *user > math.MaxInt32) {
		return volume.Invalid(field, "must be between 0 and %d, is %d", math.MaxInt32, *user)
	}
	return nil
}

func checkMode(field string, mode *int32) error {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		return volume.Invalid(field, "must be between 0 and 0777 (511), is %#o (%d)", *mode, *mode)
	}
	return nil
}
