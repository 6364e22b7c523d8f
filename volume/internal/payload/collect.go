package payload

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume"
	"github.com/podvol/podvol/volume/fileset"
	"github.com/podvol/podvol/volume/internal/downward"
	"github.com/podvol/podvol/volume/validation"
)

// readable is ORed into every file's mode when the pod has an fsGroup.
const readable fs.FileMode = 0o440

// Files are all files of a projection.
type Files struct {
	// ByPath are the files by their clean paths. They go together.
	ByPath map[string]fileset.File
	// RefreshAfter is when the first of them has to be asked for again; zero
	// means never.
	RefreshAfter time.Time
}

// Issued keeps what was issued to pods, tokens and certificates, until it is due for
// renewal. Its zero value is ready and its methods are safe for concurrent use.
type Issued struct {
	tokens       tokenCache
	certificates certificateCache
}

// Drop forgets the tokens of a pod, and the certificates of one of its volumes.
func (i *Issued) Drop(podUID types.UID, volume string) {
	i.tokens.drop(podUID)
	i.certificates.drop(podUID, volume)
}

// collector asks the host's roles for everything a projection shows. It
// touches no file.
type collector struct {
	host      volume.VolumeHost
	pod       *v1.Pod
	volume    string
	args      volume.MounterArgs
	mode      fs.FileMode
	user      *int64
	issued    *Issued
	published func(path string) ([]byte, error)
	Files
	paths fileset.PathSet
}

// Collect reads all sources. The error joins all sources' errors, so that a user
// sees all missing objects at once. Of args it takes the user and the group. The
// caller owns the result. The projection must be valid: [Projection.Validate] and
// [validation.Files] have accepted it. published reads a file that the volume shows now,
// for a certificate that is still valid; nil: it shows none.
func (p *Projection) Collect(ctx context.Context, host volume.VolumeHost, pod *v1.Pod, args volume.MounterArgs, issued *Issued, published func(path string) ([]byte, error)) (Files, error) {
	c := collector{
		host: host, pod: pod, volume: p.Volume, args: args, mode: p.mode(), user: p.DefaultUser, issued: issued, published: published,
		Files: Files{ByPath: map[string]fileset.File{}},
	}
	var errs []error
	for i := range p.Sources {
		errs = append(errs, c.source(ctx, &p.Sources[i]))
	}
	if err := errors.Join(errs...); err != nil {
		return Files{}, err
	}
	return c.Files, nil
}

func (c *collector) source(ctx context.Context, s *Source) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if k, ok := s.keyed(); ok {
		return c.keyed(ctx, s.Field, k)
	}
	switch {
	case s.DownwardAPI != nil:
		return c.downwardAPI(ctx, s.Field, s.DownwardAPI.Items)
	case s.ServiceAccountToken != nil:
		return c.token(ctx, s.Field, s.ServiceAccountToken)
	case s.PodCertificate != nil:
		return c.podCertificate(ctx, s.Field, s.PodCertificate)
	default:
		return c.trustBundle(ctx, s.Field, s.ClusterTrustBundle)
	}
}

func (c *collector) downwardAPI(ctx context.Context, at string, items []v1.DownwardAPIVolumeFile) error {
	var errs []error
	for i := range items {
		item, itemField := &items[i], fmt.Sprintf("%s.items[%d]", at, i)
		value, err := c.reference(ctx, itemField, item)
		if err == nil {
			err = c.add(itemField, item.Path, []byte(value), item.Mode, kubeapi.User(item))
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *collector) reference(ctx context.Context, at string, item *v1.DownwardAPIVolumeFile) (string, error) {
	if item.FieldRef != nil {
		f, err := downward.VolumeField(at+".fieldRef", item.FieldRef)
		if err != nil {
			return "", err
		}
		return f.Of(c.pod), nil
	}
	at += ".resourceFieldRef"
	r, err := downward.VolumeResource(at, item.ResourceFieldRef, c.pod)
	if err != nil {
		return "", err
	}
	value, err := r.Value(ctx, c.host)
	if err != nil {
		return "", fmt.Errorf("%s: %s is not limited and what the node has cannot be told: %w", at, item.ResourceFieldRef.Resource, err)
	}
	return value, nil
}

// add adds a file with the mode and owner that were written down for it, else the
// volume's.
func (c *collector) add(origin, given string, data []byte, mode *int32, user *int64) error {
	return c.put(origin, given, fileset.File{Data: data, Mode: modeOr(mode, c.mode), UID: cmp.Or(user, c.user)})
}

// addOwned adds a file made for this pod alone. If the pod has a user or an
// fsGroup, only that may read it, as with the kubelet.
func (c *collector) addOwned(origin, given string, data []byte, user *int64) error {
	file := fileset.File{Data: data, Mode: c.mode, UID: cmp.Or(user, c.user, c.args.FsUser)}
	if c.args.FsUser != nil || c.args.FsGroup != nil {
		file.Mode = 0o600
	}
	return c.put(origin, given, file)
}

// put puts a file into the set; a later file with the same path replaces an
// earlier one.
func (c *collector) put(origin, given string, file fileset.File) error {
	clean := path.Clean(given)
	if other, ok := c.paths.Conflict(clean); ok {
		otherOrigin, _ := c.paths.Origin(other)
		return fmt.Errorf("%s: %q and %q of %s do not go together: one would be a file and the directory of the other; rename one by an item",
			origin, given, other, otherOrigin)
	}
	if c.args.FsGroup != nil {
		file.GID = c.args.FsGroup
		file.Mode |= readable
	}
	c.ByPath[clean] = file
	c.paths.Add(clean, origin)
	return nil
}

// due lowers refreshAfter to t.
func (c *collector) due(t time.Time) {
	if c.RefreshAfter.IsZero() || t.Before(c.RefreshAfter) {
		c.RefreshAfter = t
	}
}

// DependsOn returns the objects that the files of a pod's volume come from: config
// maps, secrets and trust bundles, all of these where they are selected by signer,
// and the pod itself where its own fields are shown. Tokens are renewed by time,
// not by change.
func (p *Projection) DependsOn(pod *v1.Pod) []volume.ObjectRef {
	var refs []volume.ObjectRef
	for i := range p.Sources {
		ref, ok := p.Sources[i].dependsOn(pod)
		if ok && !slices.Contains(refs, ref) {
			refs = append(refs, ref)
		}
	}
	return refs
}

func (s *Source) dependsOn(pod *v1.Pod) (volume.ObjectRef, bool) {
	if k, ok := s.keyed(); ok {
		return volume.NewObjectRef(k.kind, pod.Namespace, k.name), true
	}
	switch {
	case s.DownwardAPI != nil:
		return volume.NewObjectRef("Pod", pod.Namespace, pod.Name), true
	case s.ClusterTrustBundle != nil:
		return bundleRef(s.ClusterTrustBundle), true
	}
	return volume.ObjectRef{}, false
}

// Describe names the sources for people: "configmap app-config", "projected: token,
// secret tls".
func (p *Projection) Describe() string {
	var all []string
	for i := range p.Sources {
		all = append(all, p.Sources[i].describe())
	}
	text := strings.Join(all, ", ")
	if len(p.Sources) == 1 && p.Sources[0].Field == p.Field {
		return text // the volume is its source
	}
	return p.Field + ": " + text
}

func (s *Source) describe() string {
	if k, ok := s.keyed(); ok {
		return strings.TrimSpace(strings.ToLower(k.kind) + " " + k.name)
	}
	switch {
	case s.ServiceAccountToken != nil:
		return "token"
	case s.PodCertificate != nil:
		return "certificate of " + s.PodCertificate.SignerName
	case s.ClusterTrustBundle != nil && s.ClusterTrustBundle.Name != nil:
		return "trust bundle " + *s.ClusterTrustBundle.Name
	case s.ClusterTrustBundle != nil:
		return "trust bundles"
	}
	return strings.Join(validation.ProjectionTypes(&s.VolumeProjection), "+")
}

// Validate refuses what [validation.Files] leaves: references to fields and resources
// that the pod does not have. The error is a *[volume.InvalidSpecError], marked with
// [volume.NothingDone].
func (p *Projection) Validate(pod *v1.Pod) error {
	for i := range p.Sources {
		s := &p.Sources[i]
		if s.DownwardAPI == nil {
			continue
		}
		for j := range s.DownwardAPI.Items {
			if err := checkReference(fmt.Sprintf("%s.items[%d]", s.Field, j), &s.DownwardAPI.Items[j], pod); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkReference(field string, item *v1.DownwardAPIVolumeFile, pod *v1.Pod) error {
	if item.FieldRef != nil {
		_, err := downward.VolumeField(field+".fieldRef", item.FieldRef)
		return err
	}
	_, err := downward.VolumeResource(field+".resourceFieldRef", item.ResourceFieldRef, pod)
	return err
}

// MissingError says that an object, or a key of it, is not there and is not
// optional. For a missing object it matches [volume.ErrNotFound].
type MissingError struct {
	// Field is the source or item that asks for it.
	Field string
	Ref   volume.ObjectRef
	// Key is empty when the object itself is missing.
	Key string
	// Err is what the role said; nil for a key.
	Err error
}

func (e *MissingError) Error() string {
	if e.Key != "" {
		return fmt.Sprintf("%s: %s has no key %q; add the key, or set optional: true on the source to go without it", e.Field, e.Ref, e.Key)
	}
	return fmt.Sprintf("%s: %s not found; create it, or set optional: true to start without it", e.Field, e.Ref)
}

// Unwrap returns what the role said.
func (e *MissingError) Unwrap() error { return e.Err }

// lookUpError turns what a role answered into the error of a source.
func lookUpError(field string, ref volume.ObjectRef, err error) error {
	if errors.Is(err, volume.ErrNotFound) {
		return &MissingError{Field: field, Ref: ref, Err: err}
	}
	return fmt.Errorf("%s: cannot read %s: %w", field, ref, err)
}
