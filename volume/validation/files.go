package validation

import (
	"fmt"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

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
	f := fileChecker{faults: &c.faults}
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
	*faults
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

func (c *fileChecker) mode(field string, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > maxMode) {
		c.refuse(field, "must be between 0 and 0777 (511), is %#o (%d)", *mode, *mode)
	}
}

func (c *fileChecker) user(field string, user *int64) {
	if user != nil {
		c.between(field, *user, 0, math.MaxInt32)
	}
}

// fieldRef checks the reference of a volume's file to a field of the pod.
func (c *fileChecker) fieldRef(at string, ref *v1.ObjectFieldSelector) {
	oneOf(c.faults, at+".apiVersion", ref.APIVersion, "", "v1")
	at += ".fieldPath"
	base, key, subscript := strings.Cut(ref.FieldPath, "['")
	key, closed := strings.CutSuffix(key, "']")
	if !subscript || !closed {
		c.plainField(at, ref.FieldPath)
		return
	}
	if base == "metadata.annotations" {
		key = strings.ToLower(key) // the API folds the case of annotations only
	} else {
		oneOf(c.faults, at, base, "metadata.labels", "metadata.annotations")
	}
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		c.refuse(at, "%q is no key of labels or annotations: %s", key, strings.Join(wrong, "; "))
	}
}

func (c *fileChecker) plainField(at, path string) {
	switch path {
	case "metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations":
	default:
		c.refuse(at, "%q is not one of metadata.name, .namespace, .uid, .labels and .annotations, and of the last two ['key']; others, as the pod's address, are given to environment variables only", path)
	}
}

// resourceFieldRef checks the reference of a volume's file to a resource of a
// container. It does not check that the pod has the container; the writer of the
// file does.
func (c *fileChecker) resourceFieldRef(at string, ref *v1.ResourceFieldSelector) {
	c.required(at+".containerName", ref.ContainerName)
	if !strings.HasPrefix(ref.Resource, "limits."+v1.ResourceHugePagesPrefix) && !strings.HasPrefix(ref.Resource, "requests."+v1.ResourceHugePagesPrefix) {
		oneOf(c.faults, at+".resource", ref.Resource, "limits.cpu", "limits.memory", "limits.ephemeral-storage",
			"requests.cpu", "requests.memory", "requests.ephemeral-storage")
	}
	if ref.Divisor.IsZero() {
		return
	}
	units := []string{"1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"}
	if strings.HasSuffix(ref.Resource, ".cpu") {
		units = []string{"1", "1m"}
	}
	divisor := ref.Divisor.DeepCopy() // reading a quantity may write to it
	if !slices.Contains(units, divisor.String()) {
		c.refuse(at+".divisor", "%s is not one of %s; use one of them", divisor.String(), strings.Join(units, ", "))
	}
}

// Bounds of a pod certificate's life in seconds; Kubernetes' own signers give one
// day at most.
const (
	minCertificateSeconds        = 3600
	maxCertificateSeconds        = 91 * 24 * 3600
	maxCertificateSecondsBuiltIn = 24 * 3600
)

// maxSignerPath is the length of <namespace>.<name>, the part after a signer's domain.
const maxSignerPath = validation.DNS1123LabelMaxLength + 1 + validation.DNS1123SubdomainMaxLength

const signerForm = "a signer's name is <domain>/<path>, such as example.com/signer"

// signerName is the API's rule for the names of signers.
func (c *fileChecker) signerName(at, name string) {
	domain, signer, ok := strings.Cut(name, "/")
	switch {
	case name == "":
		c.refuse(at, "must not be empty; %s", signerForm)
		return
	case !ok || strings.Contains(signer, "/"):
		c.refuse(at, "%q must have exactly one slash; %s", name, signerForm)
		return
	case !strings.Contains(domain, "."):
		c.refuse(at, "the domain of %q must have at least two labels; %s", name, signerForm)
		return
	case len(domain) > validation.DNS1123SubdomainMaxLength || len(signer) > maxSignerPath:
		c.refuse(at, "%q is too long: a domain has at most %d bytes, a path %d", name, validation.DNS1123SubdomainMaxLength, maxSignerPath)
		return
	}
	for label := range strings.SplitSeq(domain, ".") {
		if wrong := validation.IsDNS1123Label(label); len(wrong) > 0 {
			c.refuse(at, "the domain of %q is invalid: %s; %s", name, strings.Join(wrong, "; "), signerForm)
			return
		}
	}
	for label := range strings.SplitSeq(signer, ".") {
		if wrong := validation.IsDNS1123Subdomain(label); len(wrong) > 0 {
			c.refuse(at, "the path of %q is invalid: %s; %s", name, strings.Join(wrong, "; "), signerForm)
			return
		}
	}
}

// bundleName is the API's rule for the names of ClusterTrustBundles. The name of
// a signer's bundle begins with the signer's name, its slashes replaced by
// colons.
func (c *fileChecker) bundleName(at, name string) {
	own := name
	if i := strings.LastIndex(name, ":"); i >= 0 {
		own = name[i+1:]
		c.signerName(at, strings.ReplaceAll(name[:i], ":", "/"))
	}
	c.names(at, own, validation.IsDNS1123Subdomain)
}

func (c *fileChecker) trustBundle(at string, s *v1.ClusterTrustBundleProjection) {
	c.file(at+".path", s.Path)
	c.user(at+".user", kubeapi.User(s))
	switch {
	case (s.Name == nil) == (s.SignerName == nil):
		c.refuse(at, "must have exactly one of name and signerName")
	case s.Name != nil && s.LabelSelector != nil:
		c.refuse(at+".labelSelector", "selects among the bundles of a signerName; it cannot be used with name")
	case s.Name != nil:
		c.bundleName(at+".name", *s.Name)
	default:
		c.signerName(at+".signerName", *s.SignerName)
	}
	c.labelSelector(at+".labelSelector", s.LabelSelector)
}

func (c *fileChecker) podCertificate(at string, s *v1.PodCertificateProjection) {
	c.signerName(at+".signerName", s.SignerName)
	oneOf(c.faults, at+".keyType", s.KeyType, "RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
	if life := s.MaxExpirationSeconds; life != nil {
		most := int64(maxCertificateSeconds)
		if domain, _, _ := strings.Cut(s.SignerName, "/"); domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
			most = maxCertificateSecondsBuiltIn
		}
		c.between(at+".maxExpirationSeconds", int64(*life), minCertificateSeconds, most)
	}
	c.user(at+".user", kubeapi.User(s))
	given := false
	for _, f := range []struct{ name, path string }{
		{"credentialBundlePath", s.CredentialBundlePath}, {"keyPath", s.KeyPath}, {"certificateChainPath", s.CertificateChainPath},
	} {
		if f.path != "" {
			given = true
			c.file(at+"."+f.name, f.path)
		}
	}
	if !given {
		c.refuse(at, "must have at least one of credentialBundlePath, keyPath and certificateChainPath")
	}
	c.userAnnotations(at+".userAnnotations", kubeapi.UserAnnotations(s))
}

func (c *fileChecker) userAnnotations(at string, annotations map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		wrong := validation.IsQualifiedName(strings.ToLower(key))
		if !strings.Contains(key, "/") {
			wrong = append(wrong, "it must have a domain, as in example.com/key")
		}
		if len(wrong) > 0 {
			c.refuse(fmt.Sprintf("%s[%s]", at, key), "%q is no valid key: %s", key, strings.Join(wrong, "; "))
		}
	}
}
