package validation

import (
	"fmt"
	"math"
	"path"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/podvol/podvol/util/kubeapi"
	"github.com/podvol/podvol/volume/fileset"
)

// Bounds of a projected token's life in seconds, as in the API.
const (
	minTokenSeconds int64 = 600
	maxTokenSeconds int64 = 1 << 32
)

// maxMode is the API's limit for files. maxDirMode is its limit for an emptyDir,
// which may have the sticky bit.
const (
	maxMode    = 0o777
	maxDirMode = 0o1777
)

// Files refuses a volume whose configMap, secret, downwardAPI or
// projected source is wrong. It reads no objects. [PodVolumes] checks
// such a volume the same way. The error is as there; its fields begin with the
// source, as in "configMap.items[0].path". A source that is not set is not
// checked.
func Files(v *v1.Volume) error {
	var c checker
	c.files("", v)
	return c.err()
}

// files checks the sources that consist of files.
func (c *checker) files(prefix string, v *v1.Volume) {
	f := fileChecker{checker: c}
	if s := v.ConfigMap; s != nil {
		field := join(prefix, "configMap")
		f.defaults(field, s.DefaultMode, kubeapi.DefaultUser(s))
		f.segment(field+".name", s.Name)
		f.items(field, s.Items)
	}
	if s := v.Secret; s != nil {
		field := join(prefix, "secret")
		f.defaults(field, s.DefaultMode, kubeapi.DefaultUser(s))
		f.segment(field+".secretName", s.SecretName)
		f.items(field, s.Items)
	}
	if s := v.DownwardAPI; s != nil {
		field := join(prefix, "downwardAPI")
		f.defaults(field, s.DefaultMode, kubeapi.DefaultUser(s))
		f.downwardItems(field, s.Items)
	}
	if s := v.Projected; s != nil {
		field := join(prefix, "projected")
		f.defaults(field, s.DefaultMode, kubeapi.DefaultUser(s))
		f.distinct = true
		f.projected(field, s)
	}
}

func join(prefix, field string) string {
	if prefix == "" {
		return field
	}
	return prefix + "." + field
}

// fileChecker checks the files of one volume.
type fileChecker struct {
	*checker
	// distinct: no two files may have one path, as the API has it for the sources of a
	// projected volume. Elsewhere it takes both, and the last one is shown.
	distinct bool
	// paths are the paths of the files so far.
	paths fileset.PathSet
}

func (c *fileChecker) defaults(field string, mode *int32, user *int64) {
	c.mode(field+".defaultMode", mode)
	c.user(field+".defaultUser", user)
}

func (c *fileChecker) items(field string, items []v1.KeyToPath) {
	for i, item := range items {
		field := fmt.Sprintf("%s.items[%d]", field, i)
		c.required(field+".key", item.Key)
		c.item(field, item.Path, item.Mode, kubeapi.User(&item))
	}
}

func (c *fileChecker) downwardItems(field string, items []v1.DownwardAPIVolumeFile) {
	for i, item := range items {
		field := fmt.Sprintf("%s.items[%d]", field, i)
		c.item(field, item.Path, item.Mode, kubeapi.User(&item))
		if (item.FieldRef == nil) == (item.ResourceFieldRef == nil) {
			c.refuse(field, "must have exactly one of fieldRef and resourceFieldRef")
		}
		if item.FieldRef != nil {
			c.fieldRef(field+".fieldRef", item.FieldRef)
		}
		if item.ResourceFieldRef != nil {
			c.resourceFieldRef(field+".resourceFieldRef", item.ResourceFieldRef)
		}
	}
}

func (c *fileChecker) projected(field string, s *v1.ProjectedVolumeSource) {
	if len(s.Sources) == 0 {
		c.refuse(field+".sources", "must not be empty; name at least one source")
	}
	for i := range s.Sources {
		c.projection(fmt.Sprintf("%s.sources[%d]", field, i), &s.Sources[i])
	}
}

func (c *fileChecker) projection(field string, p *v1.VolumeProjection) {
	if types := ProjectionTypes(p); len(types) != 1 {
		c.refuse(field, "must have exactly one source, has %s", countSources(types))
	}
	if s := p.ConfigMap; s != nil {
		c.segment(field+".configMap.name", s.Name)
		c.items(field+".configMap", s.Items)
	}
	if s := p.Secret; s != nil {
		c.segment(field+".secret.name", s.Name)
		c.items(field+".secret", s.Items)
	}
	if s := p.DownwardAPI; s != nil {
		c.downwardItems(field+".downwardAPI", s.Items)
	}
	if s := p.ServiceAccountToken; s != nil {
		c.token(field+".serviceAccountToken", s)
	}
	if s := p.ClusterTrustBundle; s != nil {
		c.trustBundle(field+".clusterTrustBundle", s)
	}
	if s := p.PodCertificate; s != nil {
		c.podCertificate(field+".podCertificate", s)
	}
}

// ProjectionTypes returns the kinds of source that are set in one source of a
// projected volume, as manifests spell them. A valid source has one.
func ProjectionTypes(p *v1.VolumeProjection) (types []string) {
	for _, t := range []struct {
		name string
		set  bool
	}{
		{"secret", p.Secret != nil}, {"downwardAPI", p.DownwardAPI != nil}, {"configMap", p.ConfigMap != nil},
		{"serviceAccountToken", p.ServiceAccountToken != nil}, {"clusterTrustBundle", p.ClusterTrustBundle != nil},
		{"podCertificate", p.PodCertificate != nil},
	} {
		if t.set {
			types = append(types, t.name)
		}
	}
	return types
}

func (c *fileChecker) token(field string, s *v1.ServiceAccountTokenProjection) {
	c.file(field+".path", s.Path)
	c.user(field+".user", kubeapi.User(s))
	if e := s.ExpirationSeconds; e != nil {
		c.between(field+".expirationSeconds", *e, minTokenSeconds, maxTokenSeconds)
	}
}

// item checks the fields of one file of several.
func (c *fileChecker) item(field, given string, mode *int32, user *int64) {
	c.mode(field+".mode", mode)
	c.user(field+".user", user)
	c.file(field+".path", given)
}

// file checks a file's path, and that it does not conflict with the volume's
// other files.
func (c *fileChecker) file(field, given string) {
	if err := fileset.CheckPath(given); err != nil {
		c.refuse(field, "%v", err)
		return
	}
	clean := path.Clean(given)
	if other, taken := c.paths.Origin(clean); taken && c.distinct {
		c.refuse(field, "%q is the path of %s too; give each file a path of its own", given, other)
		return
	}
	if other, ok := c.paths.Conflict(clean); ok {
		origin, _ := c.paths.Origin(other)
		c.refuse(field, "%q and %q of %s do not go together: one would be a file and the directory of the other; rename one", given, other, origin)
		return
	}
	c.paths.Add(clean, strings.TrimSuffix(field, ".path"))
}

func (c *checker) mode(field string, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > maxMode) {
		c.refuse(field, "must be between 0 and 0777 (511), is %#o (%d)", *mode, *mode)
	}
}

func (c *checker) user(field string, user *int64) {
	if user != nil {
		c.between(field, *user, 0, math.MaxInt32)
	}
}
